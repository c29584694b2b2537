-- name: archive_fetch
-- What the archive stores of each event; event id and headers as the text that the database has for them.
SELECT f.sequence, f.event_id::text, f.key, f.type, f.content_type, f.headers::text, f.payload, f.created_at,
       f.sequenced_at, f.history
FROM penstock.fetch(%(topic)s, %(partition)s::integer, %(from_sequence)s::bigint, %(max_events)s::integer) AS f

-- name: low_sequences
-- Each partition of a topic and the first sequence that the database still has.
SELECT w.partition, w.low_sequence FROM penstock.high_watermarks(%(topic)s) AS w

-- name: seal
-- The next log epoch of a partition; no row when there is nothing to seal.
SELECT * FROM penstock.seal(%(topic)s, %(partition)s::integer, %(max_events)s::integer, %(max_age_seconds)s)

-- name: log_epochs_of
-- The sealed log epochs of a topic, with the targets that hold a verified copy.
SELECT * FROM penstock.log_epochs_of(%(topic)s)

-- name: missing_copies
-- The sealed log epochs of a topic of which a target holds no verified copy.
SELECT * FROM penstock.missing_copies(%(topic)s, %(target)s)

-- name: record_copy
-- Records a copy whose count and checksum, as read back, equal the seal's.
SELECT penstock.record_copy(
    %(topic)s, %(partition)s::integer, %(log_epoch)s::integer, %(target)s, %(location)s,
    %(event_count)s::bigint, %(checksum)s, %(layout)s::integer, %(first_row)s::bigint)

-- name: copies_between
-- Where a target has the copies of a range of log epochs.
SELECT known_as, log_epoch, first_sequence, last_sequence, event_count, checksum, state, layout, location, first_row
FROM penstock.copies_between(
    %(topic)s, %(partition)s::integer, %(target)s, %(first_log_epoch)s::integer, %(last_log_epoch)s::integer)

-- name: suspect_copy
-- Notes that a reader has found a copy damaged.
SELECT penstock.suspect_copy(
    %(topic)s, %(partition)s::integer, %(log_epoch)s::integer, %(target)s, %(reason)s)

-- name: suspected_copies_of
-- The copies that readers have found damaged, and that nobody has read back since.
SELECT partition, log_epoch, target, reason, suspected_at FROM penstock.suspected_copies_of(%(topic)s)

-- name: clear_suspicion
-- A suspected copy was read back, and is whole.
SELECT penstock.clear_suspicion(%(topic)s, %(partition)s::integer, %(log_epoch)s::integer, %(target)s)

-- name: log_epochs_sealed_on
-- The log epochs of a day, for each partition the first and the last.
SELECT partition, first_log_epoch, last_log_epoch FROM penstock.log_epochs_sealed_on(%(topic)s, %(sealed_date)s::date)

-- name: changed_hours
-- The hours of sealing of which something changed after a time.
SELECT topic, hour, changes, changed_at
FROM penstock.changed_hours(%(after)s::timestamptz, %(max_changes)s::integer)

-- name: log_epochs_between
-- The log epochs that were sealed in a span of time, with the targets that hold a verified copy.
SELECT * FROM penstock.log_epochs_between(%(topic)s, %(from_time)s::timestamptz, %(to_time)s::timestamptz)

-- name: unsealed_logs
-- The topics that have events above their last log epoch.
SELECT topic, events, seconds FROM penstock.unsealed_logs()

-- name: lost_copies
-- The copies that are recorded as missing.
SELECT topic, partition, log_epoch, target, detail, changed_at, sealed_at
FROM penstock.lost_copies(%(max_rows)s::integer)

-- name: move_copy
-- Moves a copy to another file, if it still is where the caller says.
SELECT penstock.move_copy(
    %(topic)s, %(partition)s::integer, %(log_epoch)s::integer, %(target)s, %(old_location)s, %(location)s,
    %(first_row)s::bigint)

-- name: forget_copy
-- Marks a copy as missing; backfill makes it again.
SELECT penstock.forget_copy(%(topic)s, %(partition)s::integer, %(log_epoch)s::integer, %(target)s, %(reason)s)

-- name: count_log_epochs
-- Counts the bytes of log epochs that an older version has sealed; returns how many are left.
SELECT penstock.count_log_epochs(%(topic)s, %(max_events)s::bigint)

-- name: begin_clean
-- Opens a run of clean; returns its token.
SELECT penstock.begin_clean(%(topic)s)::text

-- name: log_epochs_due
-- The log epochs that a run of clean has to read back.
SELECT * FROM penstock.log_epochs_due(%(topic)s, %(max_epochs)s::integer)

-- name: record_reading
-- Records what a run has read back of a copy; true when it is what was sealed.
SELECT penstock.record_reading(
    %(topic)s, %(run)s::uuid, %(partition)s::integer, %(log_epoch)s::integer, %(target)s, %(event_count)s::bigint,
    %(checksum)s, %(damage)s)

-- name: clean
-- Moves the low sequences of a topic as far as its retention policy and what the run has read back allow.
SELECT * FROM penstock.clean(%(topic)s, %(run)s::uuid)

-- name: installation_id
-- Whose an archive target is.
SELECT penstock.installation_id()::text

-- name: target_in_use
-- Whether copies were ever recorded on a target.
SELECT penstock.target_in_use(%(target)s)

-- name: copies_on
-- What a target has to hold to be the one that the recorded copies were written to.
SELECT * FROM penstock.copies_on(%(target)s)

-- name: keep_events
-- Copies the few events that are still needed of a slice. Returns the slice, or nothing when there is none to do.
SELECT penstock.keep_events()

-- name: carry_positions
-- Copies old positions to newer slices. Returns how many.
SELECT penstock.carry_positions(%(max_rows)s::integer)

-- name: condemn_slices
-- Records which slices are not needed from now on.
SELECT penstock.condemn_slices()

-- name: droppable_slices
-- The tables that can be dropped.
SELECT parent, slice, first_id, last_id FROM penstock.droppable_slices()

-- name: condemned_can_go
-- Whether every snapshot from before the slices were condemned is gone.
SELECT penstock.condemned_can_go()

-- name: close_slice
-- Lets nobody write into a slice any more. Returns whether it can go.
SELECT penstock.close_slice(%(slice)s)

-- name: slice_detaching
-- Records that clean begins to detach a slice.
SELECT penstock.slice_detaching(%(slice)s)

-- name: slice_dropped
-- Forgets a slice whose table is gone.
SELECT penstock.slice_dropped(%(slice)s)

-- name: merge_chunks
-- Fills the table that is to replace some slices of the index of the log; no row when there is nothing to merge.
SELECT first_id, last_id FROM penstock.merge_chunks()

-- name: swap_merged_slice
-- Replaces the slices by the merged table; false while a session has an older snapshot.
SELECT penstock.swap_merged_slice()

-- name: slices_ready
-- How far the prepared storage of each table reaches.
SELECT parent, used, ready, days, slices FROM penstock.slices_ready()

-- name: note_target_speed
-- Records how long a copy took on a target, or that it failed.
SELECT penstock.note_target_speed(%(target)s, %(seconds)s::double precision)

-- name: target_speeds
-- How fast each target is.
SELECT * FROM penstock.target_speeds()
