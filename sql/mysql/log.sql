-- name: unsequenced
-- What waits for the sequencer.
-- reads only
CALL penstock.unsequenced()
