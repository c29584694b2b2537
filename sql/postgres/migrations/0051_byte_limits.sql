-- name: limit_of_retention
-- How many bytes of a topic stay at most. Above it retention waits neither for the age nor for a subscription.
ALTER TABLE retention_policies ADD COLUMN max_bytes bigint CHECK (max_bytes >= 1);

-- name: bytes_of_log_epochs
-- What the events of a log epoch say, in bytes. NULL: it was sealed before there was this column, or erased from since;
-- the next run of clean that needs it counts it.
ALTER TABLE log_epochs ADD COLUMN event_bytes bigint;

-- name: reasons_of_skips
-- Why retention did not wait: max_lag, the policy max_lag_seconds of the subscription; max_bytes, the limit of the
-- topic, which held size_bytes then; passed: a queue came to it after it was gone.
ALTER TABLE skips
    ADD COLUMN reason text NOT NULL DEFAULT 'max_lag' CHECK (reason IN ('max_lag', 'max_bytes', 'passed')),
    ADD COLUMN limit_bytes bigint,
    ADD COLUMN size_bytes bigint;
UPDATE skips SET reason = 'passed' WHERE policy_version = 0;

-- name: limits_of_drops
-- The limit and the size that made a log epoch go early; NULL: it went by its age.
ALTER TABLE retention_drops
    ADD COLUMN limit_bytes bigint,
    ADD COLUMN size_bytes bigint;

-- name: drop_changed_functions
-- They have other arguments or another result; what replaces them is applied after the migrations.
DROP FUNCTION IF EXISTS set_retention(text, bigint, integer, text, text[]);
DROP FUNCTION IF EXISTS retention_of();
DROP FUNCTION IF EXISTS list_skips(text);
DROP FUNCTION IF EXISTS retention_hold(log_epochs, retention_policies, clean_runs);
DROP FUNCTION IF EXISTS record_skips(log_epochs, integer, uuid);
DROP FUNCTION IF EXISTS clean_partition(bigint, clean_runs);
DROP FUNCTION IF EXISTS range_checksum(bigint, bigint, bigint);
