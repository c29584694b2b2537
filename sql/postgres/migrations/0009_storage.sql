-- name: storage_columns
-- condemned_tx: the transaction that found that nobody needs the slice; it is dropped when no older snapshot is left. kept: what
-- was still needed of it stands in events_kept. A slice that is dropped leaves no row.
DELETE FROM slices WHERE dropped_at IS NOT NULL;
ALTER TABLE slices
    DROP COLUMN dropped_at,
    ADD COLUMN condemned_tx xid8,
    ADD COLUMN kept boolean NOT NULL DEFAULT false;

-- name: cut_into_slices
-- Turns a plain table into an insert-only one that is cut by one of its columns; what it holds becomes the first slice.
CREATE FUNCTION pg_temp.cut_into_slices(parent text, cut_by text, newest bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    slice_name text := parent || '_1';
    bound bigint := (newest / 100000 + 1) * 100000;
BEGIN
    EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES)'
                   ' PARTITION BY RANGE (%I)', parent, slice_name, cut_by);
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (1) TO (%s)', parent, slice_name, bound + 1);
    INSERT INTO slices (parent, slice, first_id, last_id) VALUES (cut_into_slices.parent, slice_name, 1, bound);
END
$$;

-- name: cut_chunks
-- The index of the log, cut by the order of writing. A sequence is unique in a slice; in all of them it is because the tick's
-- number is. Merged chunks hold events of several passes: sequenced_ats has the time of each, sequenced_at that of the last.
CREATE SEQUENCE chunks_id CACHE 1;
ALTER TABLE chunks RENAME TO chunks_1;
ALTER TABLE chunks_1 DROP CONSTRAINT chunks_pkey;
ALTER TABLE chunks_1
    ADD COLUMN sequenced_ats timestamptz[],
    ADD COLUMN chunk_id bigint NOT NULL DEFAULT nextval('chunks_id');
SELECT pg_temp.cut_into_slices('chunks', 'chunk_id', (SELECT COALESCE(max(c.chunk_id), 0) FROM chunks_1 AS c));
CREATE UNIQUE INDEX chunks_1_sequence ON chunks_1 (partition_id, first_sequence);

-- name: create_merges
-- The merge of chunks that is under way, at most one: the slices of the ids first_id .. last_id are to be replaced by the table
-- chunks_merged, which was filled by the transaction built_tx.
CREATE TABLE merges (
    first_id bigint NOT NULL,
    last_id bigint NOT NULL,
    built_tx xid8 NOT NULL
);

-- name: cut_lease_history
-- Its ids rise with time, so that old slices can go.
CREATE SEQUENCE lease_history_id CACHE 1;
ALTER TABLE lease_history RENAME TO lease_history_1;
ALTER TABLE lease_history_1 RENAME CONSTRAINT lease_history_pkey TO lease_history_1_pkey;
ALTER TABLE lease_history_1 ALTER COLUMN id DROP IDENTITY;
ALTER TABLE lease_history_1 ALTER COLUMN id SET DEFAULT nextval('lease_history_id');
SELECT setval('lease_history_id', max(h.id)) FROM lease_history_1 AS h HAVING max(h.id) IS NOT NULL;
SELECT pg_temp.cut_into_slices('lease_history', 'id', (SELECT COALESCE(max(h.id), 0) FROM lease_history_1 AS h));

-- name: cut_blocks
-- Only a block that is open matters, and the failures of that one.
CREATE SEQUENCE blocks_id CACHE 1;
DROP FUNCTION IF EXISTS open_block_of(bigint, bigint);
ALTER TABLE blocks RENAME TO blocks_1;
ALTER TABLE blocks_1 RENAME CONSTRAINT blocks_pkey TO blocks_1_pkey;
ALTER INDEX blocks_newest RENAME TO blocks_1_newest;
ALTER TABLE blocks_1 ALTER COLUMN id DROP IDENTITY;
ALTER TABLE blocks_1 ALTER COLUMN id SET DEFAULT nextval('blocks_id');
SELECT setval('blocks_id', max(b.id)) FROM blocks_1 AS b HAVING max(b.id) IS NOT NULL;
SELECT pg_temp.cut_into_slices('blocks', 'id', (SELECT COALESCE(max(b.id), 0) FROM blocks_1 AS b));
ALTER TABLE relay_failures RENAME TO relay_failures_1;
ALTER TABLE relay_failures_1 DROP COLUMN id;
ALTER TABLE relay_failures_1 DROP CONSTRAINT relay_failures_attempt;
ALTER TABLE relay_failures_1 ADD PRIMARY KEY (block_id, attempt);
SELECT pg_temp.cut_into_slices('relay_failures', 'block_id', (SELECT COALESCE(max(b.id), 0) FROM blocks_1 AS b));

-- name: drop_cut_into_slices
-- It was for the tables above.
DROP FUNCTION pg_temp.cut_into_slices(text, text, bigint);

-- name: create_events_kept
-- The few events that are still needed of slices that were dropped, under their ids. A column that events gets, this gets too.
CREATE TABLE events_kept (LIKE events, PRIMARY KEY (id)) PARTITION BY RANGE (id);

-- name: create_slice_rates
-- How fast each insert-only table takes ids: at most, in an hour, halved for every week since.
CREATE TABLE slice_rates (
    parent text PRIMARY KEY,
    used bigint NOT NULL,
    measured_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    peak_per_second double precision NOT NULL DEFAULT 0
);

-- name: create_snapshot_probe
-- Always empty. VACUUM (FREEZE) notes on it how far back the oldest snapshot of the database reaches, and needs no right to look
-- at other sessions for it.
CREATE TABLE snapshot_probe (
    nothing boolean
);

-- name: create_stops
-- Partitions that nobody reads until a restore is reconciled: source says that it has seen a sequence which the log, in the same
-- history, has not come to.
CREATE TABLE stops (
    partition_id bigint PRIMARY KEY,
    sequence bigint NOT NULL,
    history integer NOT NULL,
    source text NOT NULL,
    reported_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: reasons_of_histories
-- A new history takes leases from their holders, and brings positions back that lie beyond the log.
ALTER TABLE positions DROP CONSTRAINT positions_reason_check;
ALTER TABLE positions ADD CONSTRAINT positions_reason_check
    CHECK (reason IN ('start', 'commit', 'seek', 'carried', 'history'));
ALTER TABLE lease_history DROP CONSTRAINT lease_history_change_check;
ALTER TABLE lease_history ADD CONSTRAINT lease_history_change_check
    CHECK (change IN ('acquired', 'releasing', 'released', 'expired', 'seek', 'history'));

-- name: drop_changed_functions
-- Functions whose arguments or results changed; what replaces them is applied after the migrations.
DROP FUNCTION IF EXISTS droppable_slices();
DROP FUNCTION IF EXISTS slices_ready();
DROP FUNCTION IF EXISTS slice_size(bigint);
DROP FUNCTION IF EXISTS forget_chunks(bigint);
