-- name: keys_of_rows_that_go
-- A publication FOR ALL TABLES refuses updates and deletions of a table without a primary key. Nothing updates the
-- index of the log (chunks), and a partitioned table can have no key without the column that it is cut by.
ALTER TABLE merges ADD PRIMARY KEY (first_id);
ALTER TABLE queue_purges ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY;
ALTER TABLE snapshot_probe ADD PRIMARY KEY (nothing);
