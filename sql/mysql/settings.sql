-- name: setting
-- The value of a setting.
-- reads only
CALL penstock.setting(%(name)s)

-- name: set_setting
-- Sets a value for the whole log; NULL takes it back to the default.
CALL penstock.set_setting(%(name)s, %(value)s)

-- name: settings_of
-- Every setting with its default, and who set it when.
-- reads only
CALL penstock.settings_of()

-- name: set_backpressure
-- Limits what of a topic may wait for its sequence; NULL is no limit.
CALL penstock.set_backpressure(%(topic)s, %(max_events)s, %(max_bytes)s)

-- name: measure_pressure
-- Measures what waits where topics have a limit; answers how many partitions are at it.
CALL penstock.measure_pressure()

-- name: turn_dedup
-- Forgets dedup keys that are older than the window; answers whether it did.
CALL penstock.turn_dedup()
