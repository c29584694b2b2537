-- name: setting
-- The value of a setting.
SELECT penstock.setting(%(name)s)

-- name: set_setting
-- Sets a value for the whole log; NULL restores the default.
SELECT penstock.set_setting(%(name)s, %(value)s::double precision)

-- name: settings_of
-- Every setting with its default, and who set it and when.
SELECT name, value, preset, updated_at, updated_by FROM penstock.settings_of()

-- name: set_backpressure
-- Limits how much of a topic may wait for its sequence; NULL means no limit.
SELECT penstock.set_backpressure(%(topic)s, %(max_events)s::bigint, %(max_bytes)s::bigint)

-- name: measure_pressure
-- Measures what waits where topics have a limit. Returns how many partitions are at their limit.
SELECT penstock.measure_pressure()

-- name: turn_dedup
-- Empties the older generation of dedup keys once in a window. Returns whether it did.
SELECT penstock.turn_dedup()
