-- name: numbers_of_early_events
-- What was published behind a restore and before its first pass may have ids that rolled-back publishes left free,
-- anywhere in the log. early_tx: the number, in this cluster, of the transaction that loaded the newest tick; whoever
-- published since has a higher one. NULL: the numbers of that tick tell it.
ALTER TABLE eras ADD COLUMN early_tx xid8;

-- name: replaced_functions
-- Their arguments changed.
DROP FUNCTION IF EXISTS straddles(xid8, bigint, bigint, timestamptz);
DROP FUNCTION IF EXISTS append_few(pg_snapshot, pg_snapshot, bigint, bigint, bigint, bigint, bigint);
