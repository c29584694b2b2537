-- name: partition_of
-- The partition of a key: the same on every engine and in Python. Stored events keep the partition that they were
-- given. It is STABLE because convert_to is; as IMMUTABLE it could not be inlined into the query that calls it.
CREATE OR REPLACE FUNCTION partition_of(key text, partitions integer) RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT mod(crc32(convert_to(key, 'UTF8')), partitions)::integer
$$;
