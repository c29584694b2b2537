-- name: create_target_speeds
-- How long a copy takes on each archive target: what all runs have measured, as a moving average. failures counts those
-- in a row.
CREATE TABLE target_speeds (
    target text COLLATE "C" PRIMARY KEY,
    seconds double precision NOT NULL,
    failures integer NOT NULL,
    measured_at timestamptz NOT NULL
);
