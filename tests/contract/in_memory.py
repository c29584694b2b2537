"""Which contract tests also run on the log in memory: whole modules, except single tests.

A new test of such a module runs there as well.  One that needs what only a database has is named
here, with the reason.
"""

from __future__ import annotations

import pytest

SQL = "it reads or changes Penstock's tables by SQL"
EFFECTS = "its handlers write to a table of their own"
RETENTION = "nothing is ever dropped in memory, so no low sequence rises"
SETTINGS = "the kit has no settings of the log"
ISOLATION = "the kit has one isolation level"
CLOCK = "it asks the server, or this machine, for the time"
VIEWS = "it looks at views of subscriptions, which the kit does not have"
MUTANT = "its mutant is one of the databases' SQL"

#: By module: tests that do not run in memory, and why.
LEFT_OUT: dict[str, dict[str, str]] = {
    "test_publish": {
        "test_a_key_lives_for_a_window_at_least": SETTINGS,
        "test_publishers_of_the_same_keys": SQL,
        "test_back_pressure": SETTINGS,
    },
    "test_sequence": {
        "test_a_pass_needs_read_committed": ISOLATION,
        "test_what_is_published_to_a_deleted_topic_is_counted": SQL,
    },
    "test_fetch": {
        "test_refusals_are_typed": RETENTION,
        "test_a_gap_in_the_index_is_told": SQL,
    },
    "test_ensure_topic": {"test_without_the_guards_anything_will_do": MUTANT},
    "test_names": {"test_another_hash_is_noticed": MUTANT},
    "test_late_commits": {"test_without_it_the_late_commit_is_lost": MUTANT},
    "test_subscribe": {
        "test_below_the_low_sequence_it_cannot_begin": RETENTION,
        "test_what_relies_on_a_lock_refuses_an_old_snapshot": ISOLATION,
        "test_subscribe_waits_for_a_drop_that_is_under_way": RETENTION,
        "test_what_is_read_is_not_locked": RETENTION,
    },
    "test_check_in": {
        "test_without_the_remainders_partitions_are_starved": MUTANT,
        "test_with_ties_at_random_leases_wander": MUTANT,
        "test_without_the_deadline_a_live_lease_is_taken": MUTANT,
        "test_what_is_not_released_in_time_is_taken": SQL,
        "test_the_last_place_of_a_subscription": SQL,
    },
    "test_deliver": {"test_below_the_low_sequence_is_a_typed_error": RETENTION},
    "test_fence": {"test_a_refused_commit_leaves_the_transaction_as_it_was": EFFECTS},
    "test_consumer": {
        "test_effects_and_position_are_one_transaction_over_injected_failures": EFFECTS,
        "test_what_a_handler_committed_before_it_failed_is_not_done_again": EFFECTS,
        "test_without_the_second_guard_it_is_done_twice": EFFECTS,
        "test_a_killed_session_is_survived": "there is no server that could end a session",
        "test_a_paused_consumer_finds_its_lease_gone": EFFECTS,
        "test_work_that_outlives_its_lease_is_told_so": "it asks the server for its sessions",
    },
    "test_outages": {},
    "test_consumer_work": {
        "test_each_event_has_a_transaction_of_its_own": EFFECTS,
        "test_commits_by_count_and_time_leave_few_rows": SQL,
    },
    "test_consumer_failures": {
        "test_a_redriven_letter_that_fails_is_dead_again": EFFECTS,
        "test_async_transactions_finish_letters_and_events": EFFECTS,
        "test_the_last_error_is_told_without_what_it_says": VIEWS,
    },
    "test_suspects": {
        "test_without_the_record_it_ends_them_all": "it counts on the pause before a check-in",
    },
    "test_dead_letters": {
        "test_without_it_the_loop_goes_on": MUTANT,
        "test_as_two_they_are_both_or_neither": MUTANT,
        "test_what_the_log_does_not_hold_is_not_passed_over": SQL,
        "test_parked_events_are_bounded": SQL,
        "test_an_unsubscribed_one_leaves_nothing": SQL,
    },
    "test_steering": {
        "test_at_a_time_begins_what_was_sequenced_then": CLOCK,
        "test_at_a_time_a_late_commit_is_not_missed": CLOCK,
        "test_within_a_merged_chunk_each_event_has_its_time": SQL,
        "test_a_time_that_cannot_be_is_refused": CLOCK,
        "test_a_time_of_which_something_was_dropped": RETENTION,
        "test_without_the_guard_what_was_dropped_is_passed_over": MUTANT,
        "test_a_time_before_what_nobody_knows_any_more": RETENTION,
        "test_a_reset_moves_every_partition": SQL,
        "test_paused_nothing_is_handed_out": VIEWS,
        "test_paused_nobody_claims": "its leases are given out by a registry",
        "test_what_is_not_given_back_in_a_pause_is_taken": SQL,
        "test_without_the_guards_a_pause_is_none": MUTANT,
        "test_what_cannot_be_paused_is_told": VIEWS,
        "test_subscriptions_are_listed_and_described": VIEWS,
        "test_the_views_show_what_is_held_and_what_can_be": VIEWS,
        "test_moves_and_take_overs_of_the_last_hour_are_counted": VIEWS,
        "test_the_last_error_of_a_consumer_is_kept": VIEWS,
    },
    "test_topic_lists": {
        "test_all_is_held_and_nobody_holds_what_he_did_not_ask_for": VIEWS,
        "test_whatever_they_ask_for_is_shared_out": VIEWS,
        "test_what_a_leaver_held_goes_to_who_may_hold_it": VIEWS,
        "test_a_topic_that_is_added_is_not_in_the_list": VIEWS,
        "test_without_the_guards_it_is_not_so": MUTANT,
        "test_the_example_of_a_partition_that_changes_hands": SQL,
    },
    "test_redrive": {
        "test_without_it_the_key_is_not_replayed_in_order": MUTANT,
        "test_without_it_the_key_stops": MUTANT,
        "test_without_it_nobody_frees_the_key": MUTANT,
        "test_a_letter_takes_effect_once": EFFECTS,
        "test_without_it_the_effect_doubles": EFFECTS,
        "test_each_call_twice_is_as_once": SQL,
        "test_without_the_count_it_kills_for_ever": MUTANT,
        "test_without_it_the_attempts_begin_anew": MUTANT,
        "test_without_it_nobody_gets_them": MUTANT,
        "test_the_log_does_not_wait_for_letters": SQL,
    },
    "test_receive": {
        "test_delayed_events_come_in_the_order_of_their_times": MUTANT,
        "test_the_plain_case_leaves_no_row": SQL,
        "test_the_next_look_comes_when_a_delayed_event_is_due": SQL,
        "test_bad_calls_are_refused": ISOLATION,
        "test_without_the_token_an_event_is_handed_out_twice": MUTANT,
        "test_without_the_alone_rule_neighbours_die_too": MUTANT,
        "test_a_slow_turn_keeps_nothing_back_for_long": SQL,
        "test_without_the_bound_it_rests_for_long": MUTANT,
    },
    "test_receipts": {
        "test_zero_seconds_put_back_with_a_new_body": SQL,
        "test_failures_wait_longer_each_time_and_end_in_the_dead_letters": CLOCK,
        "test_acknowledge_is_a_part_of_the_transaction": EFFECTS,
        "test_an_expired_claim_that_is_being_finished_is_left_alone": SQL,
        "test_a_transaction_with_a_claim_has_a_limit": SQL,
        "test_without_the_limit_it_has_none": MUTANT,
        "test_without_a_guard_a_wrong_receipt_is_accepted": MUTANT,
    },
    "test_order": {
        "test_what_comes_again_keeps_its_key_waiting": SQL,
        "test_the_window_has_its_limit": SQL,
        "test_purge_delete_and_another_topic": SQL,
        "test_a_restore_forgets_who_waited_for_what_is_lost": SQL,
        "test_without_that_they_wait_for_ever": MUTANT,
        "test_the_next_one_comes_when_its_first_was_just_being_finished": SQL,
        "test_a_key_with_many_events_stops_no_other": SQL,
        "test_without_looking_at_all_keys_it_does": MUTANT,
        "test_it_waits_on_when_that_was_undone": SQL,
        "test_without_a_second_look_it_never_comes": MUTANT,
        "test_who_finishes_the_first_sees_what_is_dealt": SQL,
        "test_without_the_lock_he_does_not": MUTANT,
        "test_without_a_guard_it_fails": MUTANT,
    },
    "test_model": {},
    "test_comes_back": {
        "test_no_turn_rests_while_more_has_ended": MUTANT,
        "test_without_that_they_trickle": MUTANT,
        "test_redriven_letters_come_without_a_rest": MUTANT,
        "test_without_the_bound_it_waits_for_all": MUTANT,
    },
    "test_settings": {
        "test_an_old_snapshot_sets_nothing": ISOLATION,
        "test_without_the_guard_it_sets_the_order": MUTANT,
        "test_without_another_look_one_of_them_is_lost": MUTANT,
        "test_without_the_lock_they_do_not_see_each_other": MUTANT,
    },
}


def runs_in_memory(test: pytest.Function | pytest.Item) -> bool:
    """Whether the log in memory is one of the engines of a test."""
    module = str(test.module.__name__).rpartition(".")[-1]  # type: ignore[union-attr]
    name = str(getattr(test, "originalname", test.name))
    return module in LEFT_OUT and name not in LEFT_OUT[module]
