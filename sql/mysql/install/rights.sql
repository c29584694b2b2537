-- By design: a GRANT commits on MySQL, so the program makes it, and the roles are recorded.

-- name: function_roles
-- Which of the roles may call which procedure. Only the owner may call a procedure that is not named here. The
-- operator may call all procedures that are. The list is that of PostgreSQL, with the procedures that only these
-- engines have; a name without a procedure is skipped.
CREATE PROCEDURE function_roles()
NO SQL
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT f.name AS `function`, JSON_ARRAYAGG(g.role) AS roles
    FROM (
        SELECT 'accounts' AS role, '
            create_account delete_account list_accounts grant_account revoke_account set_account_quota account_quota
            audit_of create_key revoke_key keys_of list_namespaces namespace_exists current_history
            applied_migrations' AS functions
        UNION ALL SELECT 'gateway', '
            act_as check_gateway find_key note_uses publish publish_text publish_json publish_batch publish_packed
            publish_for_accounts claim_sends release_sends topic_lookup create_namespace create_topic ensure_topic
            rename_topic
            delete_topic describe_topic list_topics list_namespaces namespace_exists subscribe
            configure_subscription unsubscribe join check_in heartbeat heartbeats
            poll commit release leave held_leases position seek subscription_lag fetch
            fetch_plan lsn_of sequence_of high_watermarks position_at locate_time history_starts_of dead_letters_of
            dead_letter_of redrive start_letter_move
            letter_moves_of cancel_letter_move set_dead_letters_to move_letters receive acknowledge extend
            release_claims reject
            peek purge queue_statistics queue_scheduled queue_pointers describe_queue configure_queue label_queue
            labels_of_queue
            list_subscriptions
            describe_subscription subscription_statistics subscription_consumers dead_letter_counts
            pause_subscription resume_subscription current_history applied_migrations setting'
        UNION ALL SELECT 'publisher', '
            publish publish_text publish_json publish_batch publish_packed prepare_bulk publish_bulk topic_lookup
            stage_events claim_rows claim_write publish_staged publish_relayed relayed_to discard_staged
            list_namespaces namespace_exists list_topics current_history applied_migrations setting schemas_of'
        UNION ALL SELECT 'consumer', '
            subscribe configure_subscription unsubscribe join check_in heartbeat heartbeats poll commit release leave
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
            lift_limit grown_since policy_of subscription_policy claim lease_states active_consumers lead_subscription
            assign_partitions assignment_of
            mark_low_water note_archive_reads withdraw_archive_reads
            suspects begin_attempt bring_letter give_up parked_keys commit_parking poll_redriven
            finish_redriven fail_redriven redrive dead_letter_of reset_subscription pause_subscription
            resume_subscription report_error
            list_subscriptions describe_subscription subscription_consumers unleased_cursors leased_cursors
            subscription_statistics dead_letter_counts list_skips purge set_dead_letters_to move_letters
            receive acknowledge extend release_claims reject peek queue_statistics
            queue_scheduled queue_pointers describe_queue configure_queue label_queue labels_of_queue schemas_of'
        UNION ALL SELECT 'reader', '
            schemas_of
            list_namespaces namespace_exists list_topics describe_topic high_watermarks position subscription_lag
            take_overs rejected_commits log_epochs_of copies_of copies_between
            suspected_copies_of log_epochs_sealed_on missing_copies retention_of
            retention_limits list_holds list_bookmarks list_skips
            list_removals
            grants_of unsequenced changed_hours log_epochs_between unsealed_logs lost_copies
            log_status sequence_gaps slices_ready current_history applied_migrations setting settings_of histories_of
            restore_status low_sequences policy_of policy_history list_policies relays_claimed_by list_subscriptions
            describe_subscription subscription_consumers unleased_cursors leased_cursors subscription_statistics
            dead_letter_counts list_backfills backfill_ranges rehydrated_of list_erasures reissued_of erased_of
            target_speeds relay_status list_relay_groups relay_group_lag'
        UNION ALL SELECT 'installer', '
            install_rights function_roles role_members refresh_roles grant_namespace revoke_namespace grants_of
            record_gateway forget_gateway
            ensure_slices slices_ready keep_events carry_positions condemn_slices droppable_slices slice_dropped
            merge_chunks swap_merged_slice current_history applied_migrations note_slice_rates missing_slices
            sparse_slices settle_blocks raise_event_ids mergeable_partitions'
        UNION ALL SELECT 'operator', '
            publish publish_text publish_json publish_batch publish_packed prepare_bulk publish_bulk topic_lookup
            stage_events claim_rows claim_write publish_staged publish_relayed relayed_to discard_staged
            sweep_staged create_namespace
            rename_namespace move_namespace delete_namespace list_namespaces namespace_exists create_topic
            ensure_topic rename_topic move_topic
            resize_topic delete_topic list_topics describe_topic grant_namespace revoke_namespace grants_of sequence
            announce fetch fetch_plan lsn_of sequence_of high_watermarks position_at unsequenced subscribe
            configure_subscription unsubscribe join check_in heartbeat heartbeats poll commit release leave
            held_leases position seek resolve_block subscription_lag take_overs
            rejected_commits open_block open_cold_block read_block dead_letters_between missing_events passed_places
            set_relay_group delete_relay_group list_relay_groups relay_group_lag
            note_places note_breaker relay_status relay_failure leave_out stay_put bury_claims relayed_events
            queue_relay_status dead_letter
            dead_letters_of sweep seal log_epochs_of changed_hours log_epochs_between unsealed_logs lost_copies
            record_copy copies_of copies_between log_epochs_sealed_on move_copy missing_copies forget_copy
            begin_clean count_log_epochs suspect_copy suspected_copies_of clear_suspicion
            log_epochs_due record_reading clean installation_id target_in_use copies_on
            keep_events carry_positions condemn_slices
            droppable_slices slice_dropped merge_chunks swap_merged_slice set_retention retention_of retention_limits
            history_starts_of place_hold release_hold list_holds locate_time place_bookmark drop_bookmark
            list_bookmarks
            bookmark_positions list_skips list_removals expire_dead_letters remove_leftovers ensure_slices
            slices_ready log_status sequence_gaps current_history applied_migrations set_setting setting settings_of
            set_backpressure measure_pressure measure_accounts turn_dedup claim_sends release_sends
            forget_sends reconcile report_positions restore_status histories_of
            snapshot_holders sequencer_state storage_shortage broken_slices untold_identity
            published_unkeyed function_roles role_members refresh_roles
            lift_limit grown_since nothing_waits low_sequences note_slice_rates missing_slices sparse_slices
            settle_blocks raise_event_ids mergeable_partitions
            set_policy clear_policy policy_of policy_history list_policies relays_claimed_by claim_relays
            subscription_policy claim lease_states active_consumers lead_subscription assign_partitions assignment_of
            mark_low_water note_archive_reads withdraw_archive_reads
            suspects begin_attempt bring_letter give_up parked_keys commit_parking poll_redriven
            finish_redriven fail_redriven redrive dead_letter_of drop_dead_letters reset_subscription pause_subscription
            resume_subscription report_error list_subscriptions describe_subscription subscription_consumers
            unleased_cursors leased_cursors subscription_statistics dead_letter_counts request_backfill claim_backfill
            extend_backfill backfill_work progress_backfill finish_backfill fail_backfill cancel_backfill
            list_backfills backfill_ranges
            begin_rehydration put_rehydrated finish_rehydration rehydrated_of release_rehydrated find_erasable
            begin_erasure erase_events erase_letters finish_erasure list_erasures reissued_of erased_of
            note_target_speed target_speeds receive acknowledge extend release_claims reject peek queue_statistics
            queue_scheduled queue_pointers describe_queue configure_queue label_queue labels_of_queue
            purge set_dead_letters_to move_letters copies_of_erasure
            forget_letter_copies set_schema schemas_of delete_schema
            create_account delete_account list_accounts grant_account revoke_account set_account_quota account_quota
            audit_of create_key revoke_key keys_of record_gateway forget_gateway
            request_letter_task note_letter_task letter_tasks_of start_letter_move letter_moves_of
            cancel_letter_move next_letter_move note_letter_move record_look list_looks'
    ) AS g
    JOIN JSON_TABLE(
        CONCAT('["', REPLACE(TRIM(REGEXP_REPLACE(g.functions, '[[:space:]]+', ' ')), ' ', '","'), '"]'),
        '$[*]' COLUMNS (name VARCHAR(64) PATH '$')
    ) AS f
    GROUP BY f.name
    ORDER BY f.name;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: install_rights
-- Records the roles accounts, consumer, gateway, installer, operator, publisher and reader (with the schema's name
-- before them): from now on the operator and the installer pass the walls, and procedures that are created again are
-- granted to all of them. A GRANT commits, so no procedure can run it: penstock rights install runs the grants, and
-- penstock rights print writes them out. Raises PS006 when a role is missing or can log in, PS018.
CREATE PROCEDURE install_rights()
BEGIN
    DECLARE missing, strong VARCHAR(80);
    {{on error: CALL undo_call()}}
    CALL begin_call('install_rights()');
    CALL find_bad_roles(missing, strong);
    IF missing IS NOT NULL THEN
        CALL refuse('PS006', CONCAT('there is no role "', missing, '"'));
    ELSEIF strong IS NOT NULL THEN
        CALL refuse('PS006', CONCAT('the role "', strong, '" can log in, or has more rights than a role of Penstock'));
    END IF;
    REPLACE INTO installed_roles (kind, name, installed_by)
    SELECT k.kind, CONCAT(DATABASE(), '_', k.kind), principal()
    FROM JSON_TABLE(
        '["accounts", "consumer", "gateway", "installer", "operator", "publisher", "reader"]',
        '$[*]' COLUMNS (kind VARCHAR(20) PATH '$')
    ) AS k;
    CALL end_call();
END;

-- name: role_members
-- The roles that were installed, and who is in each, as a JSON array of names.
CREATE PROCEDURE role_members()
READS SQL DATA
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    CALL refuse_serializable('role_members()');
    SELECT r.name AS role, COALESCE((
        /*!80000 SELECT JSON_ARRAYAGG(e.TO_USER) FROM mysql.role_edges AS e WHERE e.FROM_USER = r.name */
        /*M! SELECT JSON_ARRAYAGG(e.member) FROM role_edges AS e WHERE e.role = r.name */
        ), '[]') AS members
    FROM installed_roles AS r
    ORDER BY r.name;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: refresh_roles
-- Records who is in which role, because MariaDB cannot be asked for that inside a transaction that does something
-- else. Call it in its own transaction after you have granted or revoked roles, or dropped users, by hand. On MySQL
-- this is not needed. Raises PS018.
CREATE PROCEDURE refresh_roles()
BEGIN
    {{on error: CALL undo_call()}}
    CALL begin_call('refresh_roles()');
    /*M!
    DELETE FROM role_edges;
    INSERT INTO role_edges (member, is_role, role)
    SELECT DISTINCT e.User, e.Host = '', e.Role FROM mysql.roles_mapping AS e;
    */
    CALL end_call();
END;
