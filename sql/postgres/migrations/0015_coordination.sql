-- name: create_leaders
-- Who leads the consumers of a subscription that share partitions by decision, and what he has decided. term is his fence.
CREATE TABLE leaders (
    subscription_id bigint PRIMARY KEY,
    term bigint NOT NULL,
    session uuid NOT NULL,
    decided_in bigint NOT NULL DEFAULT 0,
    holders text NOT NULL DEFAULT '{}'
);
