-- name: slices
-- The storage slices of the insert-only tables: ids first_id .. last_id stand in the table slice. A slice that is
-- dropped leaves no row.
CREATE TABLE slices (
    parent text NOT NULL,
    slice text PRIMARY KEY,
    first_id bigint NOT NULL,
    last_id bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The transaction that found that nobody needs the slice; it is dropped when no older snapshot is left.
    condemned_tx xid8,
    -- What was still needed of it stands in events_kept.
    kept boolean NOT NULL DEFAULT false,
    -- Since when clean has been detaching it; NULL where it was somebody else.
    detaching_since timestamptz,
    CONSTRAINT slices_first UNIQUE (parent, first_id)
);

-- name: slice_rates
-- How fast each insert-only table takes ids: at most, in an hour, halved for every week since.
CREATE TABLE slice_rates (
    parent text PRIMARY KEY,
    used bigint NOT NULL,
    measured_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    peak_per_second double precision NOT NULL DEFAULT 0
);

-- name: events_kept
-- The few events that are still needed of slices that were dropped, under their ids.
CREATE TABLE events_kept (LIKE events, PRIMARY KEY (id)) PARTITION BY RANGE (id);

-- name: merges
-- The merge of chunks that is under way, at most one: the slices of the ids first_id .. last_id are to be replaced by
-- the table chunks_merged, which was filled by the transaction built_tx.
CREATE TABLE merges (
    first_id bigint PRIMARY KEY,
    last_id bigint NOT NULL,
    built_tx xid8 NOT NULL
);

-- name: snapshot_probe
-- Always empty. VACUUM (FREEZE) notes on it how far back the oldest snapshot of the database reaches, and needs no
-- right to look at other sessions for it.
CREATE TABLE snapshot_probe (
    nothing boolean PRIMARY KEY
);
