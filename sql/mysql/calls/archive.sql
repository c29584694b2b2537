-- name: archive_fetch
-- What the archive stores of each event; event id and headers as the text that the database has for them.
-- reads only
CALL penstock.`fetch`(%(topic)s, %(partition)s, %(from_sequence)s, %(max_events)s)

-- name: low_sequences
-- Each partition of a topic and the first sequence that the database still has.
-- reads only
CALL penstock.low_sequences(%(topic)s)

-- name: seal
-- The next log epoch of a partition; no row when there is nothing to seal.
CALL penstock.seal(%(topic)s, %(partition)s, %(max_events)s, %(max_age_seconds)s)

-- name: log_epochs_of
-- The sealed log epochs of a topic, with the targets that hold a verified copy.
-- reads only
-- json: 8
CALL penstock.log_epochs_of(%(topic)s)

-- name: missing_copies
-- The sealed log epochs of a topic of which a target holds no verified copy.
-- reads only
-- json: 8
CALL penstock.missing_copies(%(topic)s, %(target)s)

-- name: record_copy
-- Records a copy whose count and checksum, as read back, equal the seal's.
CALL penstock.record_copy(
    %(topic)s, %(partition)s, %(log_epoch)s, %(target)s, %(location)s, %(event_count)s, %(checksum)s,
    %(layout)s, %(first_row)s
)

-- name: copies_between
-- Where a target has the copies of a range of log epochs.
-- reads only
CALL penstock.copies_between(%(topic)s, %(partition)s, %(target)s, %(first_log_epoch)s, %(last_log_epoch)s)

-- name: suspect_copy
-- Notes that a reader has found a copy damaged.
CALL penstock.suspect_copy(%(topic)s, %(partition)s, %(log_epoch)s, %(target)s, %(reason)s)

-- name: suspected_copies_of
-- The copies that readers have found damaged, and that nobody has read back since.
-- reads only
CALL penstock.suspected_copies_of(%(topic)s)

-- name: clear_suspicion
-- A suspected copy was read back, and is whole.
CALL penstock.clear_suspicion(%(topic)s, %(partition)s, %(log_epoch)s, %(target)s)

-- name: log_epochs_sealed_on
-- The log epochs of a day, for each partition the first and the last.
-- reads only
CALL penstock.log_epochs_sealed_on(%(topic)s, %(sealed_date)s)

-- name: changed_hours
-- The hours of sealing of which something changed after a time.
-- reads only
CALL penstock.changed_hours(%(after)s, %(max_changes)s)

-- name: log_epochs_between
-- The log epochs that were sealed in a span of time, with the targets that hold a verified copy.
-- reads only
-- json: 8
CALL penstock.log_epochs_between(%(topic)s, %(from_time)s, %(to_time)s)

-- name: unsealed_logs
-- The topics that have events above their last log epoch.
-- reads only
CALL penstock.unsealed_logs()

-- name: lost_copies
-- The copies that are recorded as missing.
-- reads only
CALL penstock.lost_copies(%(max_rows)s)

-- name: move_copy
-- Moves a copy to another file, if it still is where the caller says.
CALL penstock.move_copy(
    %(topic)s, %(partition)s, %(log_epoch)s, %(target)s, %(old_location)s, %(location)s, %(first_row)s
)

-- name: forget_copy
-- Marks a copy as missing; backfill makes it again.
CALL penstock.forget_copy(%(topic)s, %(partition)s, %(log_epoch)s, %(target)s, %(reason)s)

-- name: count_log_epochs
-- Counts the bytes of log epochs that an older version has sealed; returns how many are left.
CALL penstock.count_log_epochs(%(topic)s, %(max_events)s)

-- name: begin_clean
-- Opens a run of clean; returns its token.
CALL penstock.begin_clean(%(topic)s)

-- name: log_epochs_due
-- The log epochs that a run of clean has to read back.
-- json: 8
CALL penstock.log_epochs_due(%(topic)s, %(max_epochs)s)

-- name: record_reading
-- Records what a run has read back of a copy; true when it is what was sealed.
CALL penstock.record_reading(
    %(topic)s, %(run)s, %(partition)s, %(log_epoch)s, %(target)s, %(event_count)s, %(checksum)s, %(damage)s
)

-- name: clean
-- Moves the low sequences of a topic as far as its retention policy and what the run has read back allow.
CALL penstock.clean(%(topic)s, %(run)s)

-- name: installation_id
-- Whose an archive target is.
-- reads only
CALL penstock.installation_id()

-- name: target_in_use
-- Whether copies were ever recorded on a target.
-- reads only
CALL penstock.target_in_use(%(target)s)

-- name: copies_on
-- What a target has to hold to be the one that the recorded copies were written to.
-- reads only
CALL penstock.copies_on(%(target)s)

-- name: note_target_speed
-- Records how long a copy took on a target, or that it failed.
CALL penstock.note_target_speed(%(target)s, %(seconds)s)

-- name: target_speeds
-- How fast each target is.
-- reads only
CALL penstock.target_speeds()
