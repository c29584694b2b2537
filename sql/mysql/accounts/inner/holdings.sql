-- name: account_holdings
-- What there is in an account's namespace and below it, and how many of its keys are good or will be.
CREATE PROCEDURE account_holdings(of_account VARCHAR(32))
READS SQL DATA
BEGIN
    DECLARE root LONGTEXT;
    DECLARE topics, queues, streams, leases, letters, holds, copies, live BIGINT DEFAULT 0;
    SELECT MAX(n.path) INTO root FROM accounts AS a JOIN namespaces AS n ON n.id = a.namespace_id
    WHERE a.id = of_account;
    SET root = CONCAT(root, '/');
    SELECT COUNT(k.id) INTO live FROM account_keys AS k
    WHERE k.account_id = of_account AND k.revoked_at IS NULL AND COALESCE(k.ends_at > UTC_TIMESTAMP(6), TRUE);
    SELECT COUNT(t.id) INTO topics FROM topics AS t WHERE LEFT(t.address, CHAR_LENGTH(root)) = root;
    SELECT COUNT(DISTINCT IF(s.mode = 'queue', s.id, NULL)), COUNT(DISTINCT IF(s.mode = 'stream', s.id, NULL))
    INTO queues, streams
    FROM topics AS t
    JOIN subscription_topics AS r ON r.topic_id = t.id
    JOIN subscriptions AS s ON s.id = r.subscription_id
    WHERE LEFT(t.address, CHAR_LENGTH(root)) = root;
    SELECT COUNT(l.holder) INTO leases
    FROM topics AS t
    JOIN subscription_topics AS r ON r.topic_id = t.id
    JOIN partitions AS p ON p.topic_id = t.id
    JOIN leases AS l ON l.subscription_id = r.subscription_id AND l.partition_id = p.id
    WHERE LEFT(t.address, CHAR_LENGTH(root)) = root;
    SELECT COUNT(d.sequence) INTO letters
    FROM topics AS t
    JOIN subscription_topics AS r ON r.topic_id = t.id
    JOIN partitions AS p ON p.topic_id = t.id
    JOIN dead_letters AS d ON d.subscription_id = r.subscription_id AND d.partition_id = p.id
    WHERE LEFT(t.address, CHAR_LENGTH(root)) = root;
    SELECT COUNT(h.name) INTO holds FROM topics AS t JOIN legal_holds AS h ON h.topic_id = t.id
    WHERE LEFT(t.address, CHAR_LENGTH(root)) = root AND h.released_at IS NULL;
    SELECT COUNT(c.target) INTO copies
    FROM topics AS t
    JOIN partitions AS p ON p.topic_id = t.id
    JOIN epoch_copies AS c ON c.partition_id = p.id
    WHERE LEFT(t.address, CHAR_LENGTH(root)) = root;
    SELECT live AS `keys`, topics AS topics, queues AS queues, streams AS streams, leases AS leases,
           letters AS dead_letters, holds AS holds, copies AS copies;
END;
