-- name: commit
-- Moves positions forward, all or none, in the caller's transaction: what else that transaction writes takes effect
-- exactly once. positions are the last sequences that were handled. after are the positions after which the events
-- were read (or NULL): a reader that lost its connection during the last COMMIT may read events again, but must not
-- handle them twice. The arrays are JSON. Raises PS006, PS010, PS011, PS012, PS013, PS018.
CREATE PROCEDURE `commit`(
    subscription LONGTEXT, consumer VARCHAR(255), partition_ids JSON, lease_epochs JSON, positions JSON, after JSON
)
BEGIN
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call()}}
    CALL begin_call('commit()');
    CALL move_positions(subscription, consumer, partition_ids, lease_epochs, positions, after);
    -- The caller may need LAST_INSERT_ID() for a row of its own.
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: rejected_commits
-- How many commits the fence has refused since the installation, for all subscriptions; NULL for a login that does
-- not pass the walls.
CREATE PROCEDURE rejected_commits()
READS SQL DATA
BEGIN
    DECLARE rejected BIGINT;
    CALL refuse_serializable('rejected_commits()');
    CALL find_rejected_commits(rejected);
    SET rejected = IF(sees_all(), rejected, NULL);
    SELECT rejected AS rejected_commits;
END;
