-- name: create_inbox
-- In the application's own database: how far each partition of a subscription was handled there, and under which
-- lease. letter_id is 0 for the stream; a redriven dead letter has a row of its own.
CREATE TABLE IF NOT EXISTS penstock_inbox (
    source text NOT NULL,
    subscription text NOT NULL,
    partition_id bigint NOT NULL,
    letter_id bigint NOT NULL,
    history integer NOT NULL,
    sequence bigint NOT NULL,
    lease_epoch bigint NOT NULL,
    PRIMARY KEY (source, subscription, partition_id, letter_id)
) WITH (fillfactor = 50)

-- name: limit_inbox
-- Sets a limit that ends the session if this transaction is idle for too long, because its successor waits for it. It
-- does not raise a limit that is already set.
SELECT set_config('idle_in_transaction_session_timeout', %(seconds)s::integer * 1000 || 'ms', true)
WHERE extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval)
    NOT BETWEEN 0.001 AND %(seconds)s::integer

-- name: enter_inbox
-- Adds the row of a partition, if there is none yet.
INSERT INTO penstock_inbox (source, subscription, partition_id, letter_id, history, sequence, lease_epoch)
VALUES (%(source)s, %(subscription)s, %(partition_id)s::bigint, %(letter_id)s::bigint, 0, 0, 0)
ON CONFLICT DO NOTHING

-- name: lock_inbox
-- How far a partition was handled. It locks the row, so that no other session handles the partition until the
-- transaction ends.
SELECT history, sequence, lease_epoch
FROM penstock_inbox
WHERE source = %(source)s AND subscription = %(subscription)s AND partition_id = %(partition_id)s::bigint
    AND letter_id = %(letter_id)s::bigint
FOR UPDATE

-- name: move_inbox
-- Records what is handled in this transaction.
UPDATE penstock_inbox
SET history = %(history)s::integer, sequence = %(sequence)s::bigint, lease_epoch = %(lease_epoch)s::bigint
WHERE source = %(source)s AND subscription = %(subscription)s AND partition_id = %(partition_id)s::bigint
    AND letter_id = %(letter_id)s::bigint

-- name: forget_inbox
-- Forgets what a subscription has handled, so that it can be handled again.
DELETE FROM penstock_inbox WHERE source = %(source)s AND subscription = %(subscription)s
