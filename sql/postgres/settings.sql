-- name: setting
-- The value of a setting.
SELECT penstock.setting(%(name)s)

-- name: set_setting
-- Sets a value for the whole log; NULL takes it back to the default.
SELECT penstock.set_setting(%(name)s, %(value)s::double precision)

-- name: settings_of
-- Every setting with its default, and who set it when.
SELECT name, value, preset, updated_at, updated_by FROM penstock.settings_of()

-- name: set_backpressure
-- Limits what of a topic may wait for its sequence; NULL is no limit.
SELECT penstock.set_backpressure(%(topic)s, %(max_events)s::bigint, %(max_bytes)s::bigint)

-- name: measure_pressure
-- Measures what waits where topics have a limit; answers how many partitions are at it.
SELECT penstock.measure_pressure()

-- name: turn_dedup
-- Empties the older generation of dedup keys once in a window; answers whether it did.
SELECT penstock.turn_dedup()
