-- name: account_holdings
-- What there is in an account's namespace and below it, and how many of its keys are good or will be.
CREATE OR REPLACE FUNCTION account_holdings(of_account text)
RETURNS TABLE (
    keys bigint, topics bigint, queues bigint, streams bigint, leases bigint, dead_letters bigint, holds bigint,
    copies bigint
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    own bigint[];
    parts bigint[];
    readers bigint[];
BEGIN
    SELECT array_agg(t.id) INTO own
    FROM accounts AS a CROSS JOIN LATERAL unnest(namespaces_below(a.namespace_id)) AS b (id)
    JOIN topics AS t ON t.namespace_id = b.id
    WHERE a.id = of_account;
    SELECT array_agg(p.id) INTO parts FROM partitions AS p WHERE p.topic_id = ANY (own);
    SELECT array_agg(DISTINCT r.subscription_id) INTO readers
    FROM subscription_topics AS r WHERE r.topic_id = ANY (own);
    RETURN QUERY
    SELECT (SELECT count(*) FROM account_keys AS k
            WHERE k.account_id = of_account AND k.revoked_at IS NULL
              AND COALESCE(k.ends_at > clock_timestamp(), true)),
           COALESCE(cardinality(own), 0)::bigint,
           (SELECT count(*) FROM subscriptions AS s WHERE s.id = ANY (readers) AND s.mode = 'queue'),
           (SELECT count(*) FROM subscriptions AS s WHERE s.id = ANY (readers) AND s.mode = 'stream'),
           (SELECT count(*) FROM leases AS l
            WHERE l.subscription_id = ANY (readers) AND l.partition_id = ANY (parts) AND l.holder IS NOT NULL),
           (SELECT count(*) FROM dead_letters AS d
            WHERE d.subscription_id = ANY (readers) AND d.partition_id = ANY (parts)),
           (SELECT count(*) FROM legal_holds AS h WHERE h.topic_id = ANY (own) AND h.released_at IS NULL),
           (SELECT count(*) FROM epoch_copies AS c WHERE c.partition_id = ANY (parts));
END
$$;
