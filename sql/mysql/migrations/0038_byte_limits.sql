-- name: drop_add_limits
-- What an installation that broke off has left.
DROP PROCEDURE IF EXISTS add_limits;

-- name: create_add_limits
-- Changes of tables that exist, each only where it was not made yet. retention_policies: how many bytes of a topic stay
-- at most; above it retention waits neither for the age nor for a subscription. log_epochs: what the events say, in
-- bytes; NULL: sealed before there was this column, or erased from since, and the next run of clean that needs it
-- counts it. skips: why retention did not wait: max_lag, the policy max_lag_seconds of the subscription; max_bytes, the
-- limit of the topic, which held size_bytes then; passed: a queue came to it after it was gone. retention_drops: the
-- limit and the size that made a log epoch go early; NULL: it went by its age.
CREATE PROCEDURE add_limits()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'retention_policies' AND c.COLUMN_NAME = 'max_bytes') THEN
        ALTER TABLE retention_policies
            ADD COLUMN max_bytes BIGINT, ADD CONSTRAINT retention_policies_limit CHECK (max_bytes >= 1);
    END IF;
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'log_epochs' AND c.COLUMN_NAME = 'event_bytes') THEN
        ALTER TABLE log_epochs ADD COLUMN event_bytes BIGINT;
    END IF;
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'skips' AND c.COLUMN_NAME = 'reason') THEN
        ALTER TABLE skips
            ADD COLUMN reason VARCHAR(20) NOT NULL DEFAULT 'max_lag',
            ADD COLUMN limit_bytes BIGINT,
            ADD COLUMN size_bytes BIGINT,
            ADD CONSTRAINT skips_reason CHECK (reason IN ('max_lag', 'max_bytes', 'passed'));
    END IF;
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'retention_drops' AND c.COLUMN_NAME = 'limit_bytes') THEN
        ALTER TABLE retention_drops ADD COLUMN limit_bytes BIGINT, ADD COLUMN size_bytes BIGINT;
    END IF;
    UPDATE skips AS k SET k.reason = 'passed' WHERE k.policy_version = 0;
END;

-- name: add_limits
-- Waits for whoever uses these tables, a second at a time.
CALL add_limits();

-- name: forget_add_limits
-- It was for this migration.
DROP PROCEDURE add_limits;
