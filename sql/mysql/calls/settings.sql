-- name: setting
-- The value of a setting.
-- reads only
CALL penstock.setting(%(name)s)

-- name: set_setting
-- Sets a value for the whole log; NULL restores the default.
CALL penstock.set_setting(%(name)s, %(value)s)

-- name: settings_of
-- Every setting with its default, and who set it and when.
-- reads only
CALL penstock.settings_of()

-- name: set_backpressure
-- Limits how much of a topic may wait for its sequence; NULL means no limit.
CALL penstock.set_backpressure(%(topic)s, %(max_events)s, %(max_bytes)s)

-- name: measure_pressure
-- Measures what waits where topics have a limit. Returns how many partitions are at their limit.
CALL penstock.measure_pressure()

-- name: turn_dedup
-- Forgets dedup keys that are older than the window. Returns whether it did.
CALL penstock.turn_dedup()
