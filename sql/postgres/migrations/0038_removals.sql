-- name: create_removals
-- Subscriptions that are gone, and of which something is still to be deleted. Their names are free, and nobody reads
-- what they left.
CREATE TABLE removals (
    subscription_id bigint PRIMARY KEY,
    name text NOT NULL,
    removed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
