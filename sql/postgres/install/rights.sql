-- By design: a GRANT commits on MySQL, so the program makes it, and the roles are recorded.

-- name: function_roles
-- Which of the roles may call which function. Only the owner may call a function that is not named here. The
-- operator may call all functions that are. Add each new public function here; it has to be SECURITY DEFINER
-- and set its search path.
CREATE OR REPLACE FUNCTION function_roles() RETURNS TABLE (function text, roles text[])
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT f.name, array_agg(g.role ORDER BY g.role)
    FROM (VALUES
        ('accounts', 'create_account delete_account list_accounts grant_account revoke_account set_account_quota
            account_quota audit_of create_key revoke_key keys_of list_namespaces namespace_exists
            current_history applied_migrations'),
        ('gateway', 'act_as check_gateway find_key note_uses publish publish_text publish_json publish_batch
            publish_for_accounts claim_sends publish_columns topic_lookup wake_sequencer create_namespace create_topic
            ensure_topic
            rename_topic delete_topic describe_topic list_topics list_namespaces namespace_exists subscribe
            configure_subscription unsubscribe join check_in heartbeat heartbeats poll commit release leave
            held_leases position seek subscription_lag fetch fetch_plan lsn_of sequence_of high_watermarks
            position_at locate_time history_starts_of dead_letters_of dead_letter_of redrive start_letter_move
            letter_moves_of cancel_letter_move set_dead_letters_to
            move_letters receive acknowledge extend release_claims reject peek purge queue_statistics queue_scheduled
            queue_pointers
            describe_queue configure_queue label_queue labels_of_queue
            list_subscriptions describe_subscription subscription_statistics
            subscription_consumers dead_letter_counts pause_subscription resume_subscription current_history
            applied_migrations setting'),
        ('publisher', 'publish publish_text publish_json publish_batch publish_columns prepare_bulk publish_bulk
            topic_lookup stage_events claim_rows claim_write publish_staged publish_relayed relayed_to
            discard_staged wake_sequencer
            list_namespaces namespace_exists list_topics current_history applied_migrations setting schemas_of'),
        ('consumer', 'subscribe configure_subscription unsubscribe join check_in heartbeat heartbeats poll commit
            release leave
            held_leases position seek resolve_block subscription_lag take_overs rejected_commits
            open_block open_cold_block read_block dead_letters_between missing_events passed_places
            set_relay_group delete_relay_group list_relay_groups relay_group_lag
            note_places note_breaker relay_status relay_failure dead_letter leave_out stay_put bury_claims
            relayed_events queue_relay_status
            dead_letters_of installation_id
            report_positions fetch fetch_plan lsn_of sequence_of high_watermarks position_at
            locate_time place_bookmark drop_bookmark list_bookmarks bookmark_positions history_starts_of
            suspect_copy
            list_namespaces namespace_exists list_topics describe_topic current_history applied_migrations setting
            policy_of subscription_policy
             claim lease_states active_consumers lead_subscription assign_partitions assignment_of
            mark_low_water note_archive_reads withdraw_archive_reads
            suspects begin_attempt bring_letter give_up parked_keys commit_parking poll_redriven finish_redriven
            fail_redriven redrive dead_letter_of
            reset_subscription pause_subscription resume_subscription report_error
            list_subscriptions describe_subscription subscription_consumers unleased_cursors leased_cursors
            subscription_statistics dead_letter_counts list_skips purge set_dead_letters_to move_letters
            receive acknowledge extend release_claims reject peek queue_statistics
            queue_scheduled queue_pointers describe_queue configure_queue label_queue labels_of_queue schemas_of'),
        ('reader', 'schemas_of list_namespaces namespace_exists list_topics describe_topic high_watermarks position
            subscription_lag take_overs rejected_commits log_epochs_of copies_of copies_between
            suspected_copies_of log_epochs_sealed_on missing_copies retention_of
            retention_limits list_holds list_bookmarks grants_of
            changed_hours
            log_epochs_between unsealed_logs lost_copies
            unsequenced log_status sequence_gaps slices_ready current_history applied_migrations setting settings_of
            histories_of restore_status policy_of policy_history list_policies relays_claimed_by
            list_subscriptions describe_subscription subscription_consumers unleased_cursors leased_cursors
            subscription_statistics dead_letter_counts list_skips list_removals list_backfills backfill_ranges
            rehydrated_of list_erasures reissued_of erased_of target_speeds
            relay_status list_relay_groups relay_group_lag'),
        ('installer', 'install_rights function_roles grant_namespace revoke_namespace grants_of record_gateway
            forget_gateway ensure_slices
            slices_ready keep_events carry_positions condemn_slices condemned_can_go droppable_slices close_slice
            slice_detaching slice_dropped merge_chunks swap_merged_slice current_history applied_migrations'),
        ('operator', 'publish publish_text publish_json publish_batch publish_columns prepare_bulk publish_bulk
            topic_lookup stage_events claim_rows claim_write publish_staged publish_relayed relayed_to
            discard_staged sweep_staged wake_sequencer
            create_namespace rename_namespace move_namespace delete_namespace list_namespaces namespace_exists
            create_topic ensure_topic rename_topic
            move_topic resize_topic delete_topic list_topics describe_topic grant_namespace revoke_namespace grants_of
            sequence announce fetch fetch_plan lsn_of sequence_of high_watermarks position_at unsequenced subscribe
            configure_subscription unsubscribe join check_in heartbeat heartbeats poll commit release leave held_leases
            position seek resolve_block subscription_lag take_overs
            rejected_commits open_block open_cold_block read_block dead_letters_between missing_events passed_places
            set_relay_group delete_relay_group list_relay_groups relay_group_lag
            note_places note_breaker relay_status relay_failure leave_out stay_put bury_claims relayed_events
            queue_relay_status dead_letter
            dead_letters_of sweep seal log_epochs_of changed_hours log_epochs_between unsealed_logs lost_copies
            record_copy copies_of copies_between log_epochs_sealed_on move_copy missing_copies forget_copy
            count_log_epochs
            begin_clean log_epochs_due record_reading clean suspect_copy suspected_copies_of clear_suspicion
            installation_id target_in_use copies_on keep_events carry_positions
            condemn_slices condemned_can_go droppable_slices close_slice slice_detaching slice_dropped merge_chunks
            swap_merged_slice set_retention retention_of retention_limits
            history_starts_of place_hold release_hold list_holds locate_time place_bookmark drop_bookmark
            list_bookmarks
            bookmark_positions list_skips list_removals expire_dead_letters remove_leftovers
            ensure_slices slices_ready log_status sequence_gaps current_history applied_migrations set_setting setting
            settings_of set_backpressure measure_pressure measure_accounts turn_dedup claim_sends forget_sends
            reconcile report_positions restore_status histories_of snapshot_holders sequencer_state
            storage_shortage broken_slices
            untold_identity published_unkeyed function_roles
            set_policy clear_policy policy_of policy_history list_policies relays_claimed_by claim_relays
            subscription_policy
             claim lease_states active_consumers lead_subscription assign_partitions assignment_of
            mark_low_water note_archive_reads withdraw_archive_reads
            suspects begin_attempt bring_letter give_up parked_keys commit_parking poll_redriven finish_redriven
            fail_redriven redrive dead_letter_of drop_dead_letters
            reset_subscription pause_subscription resume_subscription report_error
            list_subscriptions describe_subscription subscription_consumers unleased_cursors leased_cursors
            subscription_statistics dead_letter_counts request_backfill claim_backfill extend_backfill backfill_work
            progress_backfill finish_backfill fail_backfill cancel_backfill list_backfills backfill_ranges
            begin_rehydration put_rehydrated finish_rehydration rehydrated_of release_rehydrated find_erasable
            begin_erasure erase_events erase_letters finish_erasure list_erasures reissued_of erased_of
            note_target_speed target_speeds receive acknowledge extend release_claims reject peek queue_statistics
            queue_scheduled queue_pointers describe_queue configure_queue label_queue labels_of_queue
            purge set_dead_letters_to move_letters copies_of_erasure
            forget_letter_copies set_schema schemas_of delete_schema
            create_account delete_account list_accounts grant_account revoke_account set_account_quota account_quota
            audit_of create_key revoke_key keys_of record_gateway forget_gateway
            request_letter_task note_letter_task letter_tasks_of start_letter_move letter_moves_of
            cancel_letter_move next_letter_move note_letter_move record_look list_looks')
    ) AS g (role, functions)
    CROSS JOIN LATERAL regexp_split_to_table(g.functions, $p$\s+$p$) AS f (name)
    GROUP BY f.name
$$;

-- name: install_rights
-- Gives the roles accounts, consumer, gateway, installer, operator, publisher and reader (with the schema's name
-- before them) the functions that they may call, and nothing else. A user who may create roles has to create them
-- first, without LOGIN; raises PS006 when one is missing.
CREATE OR REPLACE FUNCTION install_rights() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    wanted record;
BEGIN
    PERFORM commit_durably();
    FOR wanted IN
        SELECT k.kind, format('%s_%s', current_schema(), k.kind) AS name, r.rolname IS NOT NULL AS present,
               r.rolcanlogin OR r.rolsuper OR r.rolcreaterole OR r.rolbypassrls AS strong
        FROM unnest('{accounts,consumer,gateway,installer,operator,publisher,reader}'::text[]) AS k (kind)
        LEFT JOIN pg_roles AS r ON r.rolname = current_schema() || '_' || k.kind
        ORDER BY k.kind
    LOOP
        IF NOT wanted.present THEN
            PERFORM refuse('PS006', format('there is no role "%s"', wanted.name),
                           format('As a login that may create roles: CREATE ROLE %I NOLOGIN', wanted.name));
        ELSIF wanted.strong THEN
            PERFORM refuse('PS006', format('the role "%s" can log in, or has more rights than a role of Penstock',
                                           wanted.name),
                           'It is not Penstock''s own: take LOGIN, SUPERUSER, CREATEROLE and BYPASSRLS from it first.');
        END IF;
        PERFORM grant_functions(wanted.kind);
    END LOOP;
END
$$;
