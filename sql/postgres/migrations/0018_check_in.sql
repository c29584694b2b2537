-- name: turns_of_consumers
-- When a consumer is to check in next, and whether another one's check-in has called it before its time.
ALTER TABLE consumers ADD COLUMN check_in_at timestamptz NOT NULL DEFAULT '-infinity';
ALTER TABLE consumers ADD COLUMN called boolean NOT NULL DEFAULT false;

-- name: create_surveys
-- When somebody last looked which partitions of a subscription are active, how many seconds lie between two check-ins of one
-- consumer if all of them together are to keep to target_qps, until when the turns of those who were called are given out, and
-- whether everybody had his share, so that nothing had to move.
CREATE TABLE surveys (
    subscription_id bigint PRIMARY KEY,
    made_at timestamptz NOT NULL,
    pace_seconds double precision NOT NULL,
    called_until timestamptz NOT NULL DEFAULT '-infinity',
    balanced boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

-- name: create_active_partitions
-- What a survey has found. A row comes and goes with the activity of a partition, not with its events.
CREATE TABLE active_partitions (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    PRIMARY KEY (subscription_id, partition_id)
);

-- name: drop_changed_functions
-- Functions whose arguments or results changed; what replaces them is applied after the migrations.
DROP FUNCTION IF EXISTS check_in(text, text, uuid);
DROP FUNCTION IF EXISTS extend_deadline(subscriptions, text, uuid, timestamptz);
DROP FUNCTION IF EXISTS lease_board(bigint, bigint[], timestamptz);
DROP FUNCTION IF EXISTS share_out(subscriptions, text, bigint[], timestamptz);
