-- By design: PostgreSQL undoes a failed function itself; a procedure of MySQL sets a savepoint and undoes itself.

-- name: require_read_committed
-- Refuses other isolation levels (PS018): a snapshot that is older than a lock does not see what the lock protects.
CREATE OR REPLACE FUNCTION require_read_committed(what text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM refuse('PS018', format('%s needs READ COMMITTED', what),
                       'Call it in a transaction of that isolation level.');
    END IF;
END
$$;

-- name: commit_durably
-- Makes the COMMIT of the caller's transaction wait for the disk, whatever the session has set. Some results fence or
-- acknowledge something outside the database: a lease_epoch, a block, a seal, a right that was taken back. Such a
-- result must not be given out a second time after a crash.
CREATE OR REPLACE FUNCTION commit_durably() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;
