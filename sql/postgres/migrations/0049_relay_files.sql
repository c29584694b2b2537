-- name: create_relay_files
-- Which policy file's relays the database follows. What a file sets has its origin; a relay of it is a subscription,
-- which has none.
CREATE TABLE relay_files (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    origin text NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    claimed_by text NOT NULL DEFAULT session_user
);
