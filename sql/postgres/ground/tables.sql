-- name: settings
-- What can be set for the whole log; a name without a row has its default.
CREATE TABLE settings (
    name text PRIMARY KEY,
    value double precision NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by text NOT NULL
);
