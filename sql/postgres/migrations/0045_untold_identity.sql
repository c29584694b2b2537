-- name: identity_may_be_unknown
-- A managed server may refuse to tell the cluster or the timeline.
ALTER TABLE eras ALTER COLUMN system_identifier DROP NOT NULL, ALTER COLUMN timeline DROP NOT NULL;
