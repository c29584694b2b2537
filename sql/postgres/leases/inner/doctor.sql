-- By design: on MySQL the doctor reads the server's own tables, see calls/doctor.sql.

-- name: leases_prepared
-- The leases that a prepared transaction has locked, whichever consumer held them: no consumer can take them over.
-- NULL when there are none. Rows that it locked within a savepoint cannot be named.
CREATE OR REPLACE FUNCTION leases_prepared(transaction xid) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT COALESCE(
        (SELECT string_agg(format('partition %s of %s for "%s"', p.number, t.address, s.name), ', '
                           ORDER BY s.name, t.address, p.number)
         FROM leases AS l
         JOIN subscriptions AS s ON s.id = l.subscription_id
         JOIN partitions AS p ON p.id = l.partition_id
         JOIN topics AS t ON t.id = p.topic_id
         WHERE l.xmax = leases_prepared.transaction),
        (SELECT 'some partition'
         FROM pg_locks AS x
         JOIN pg_locks AS k ON k.virtualtransaction = x.virtualtransaction AND k.pid IS NULL
         WHERE x.transactionid = leases_prepared.transaction AND x.granted AND x.pid IS NULL
           AND k.relation = to_regclass('leases') AND k.mode IN ('RowShareLock', 'RowExclusiveLock')
           AND k.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
         LIMIT 1))
$$;
