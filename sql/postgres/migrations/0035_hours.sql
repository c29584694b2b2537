-- name: log_epochs_by_time
-- Who follows the log epochs of all topics finds the newest without looking at the others.
CREATE INDEX log_epochs_time ON log_epochs (sealed_at);

-- name: copies_by_change
-- The same for copies that were recorded or lost, and for the few that are missing.
CREATE INDEX epoch_copies_changed ON epoch_copies (changed_at);
CREATE INDEX epoch_copies_missing ON epoch_copies (changed_at) WHERE state = 'missing';
