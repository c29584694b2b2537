-- By design: PostgreSQL takes arrays, MySQL packed bytes.

-- name: account_may_publish
-- Whether an account may publish in a namespace now, by a key that was shown: what act_as and publish ask. It names the
-- account, and so asks nothing of the transaction.
CREATE OR REPLACE FUNCTION account_may_publish(account text, key_id text, namespace_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM accounts AS a WHERE a.id = account)
        AND EXISTS (SELECT FROM good_keys(account, ARRAY[key_id]))
        AND account_has_right(account, namespace_id, 'publish')
        AND quota_problem(account) IS NULL;
END
$$;

-- name: fits_line
-- Whether an event is certainly valid in a topic of so many partitions; NULL or false: it is not. It is STABLE, so that
-- it can be inlined into the query that calls it. 255 bytes are at most 255 characters.
CREATE OR REPLACE FUNCTION fits_line(
    parts integer, longest integer, payload_bytes integer, key text, type text, content_type text, headers jsonb,
    partition integer
) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT payload_bytes <= longest AND has_plain_headers(headers)
        AND GREATEST(octet_length(key), octet_length(type), octet_length(content_type), 0) <= 255
        AND (partition IS NULL AND parts > 0 OR partition >= 0 AND partition < parts)
$$;

-- name: charge_lines
-- Counts for each account that has a quota what was published of it. The line of an event that was not is NULL.
CREATE OR REPLACE FUNCTION charge_lines(accounts text[], lines integer[], payloads bytea[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM account_quotas AS q WHERE q.account_id = ANY (accounts)) THEN
        PERFORM count_published(q.account_id, count(*), sum(octet_length(i.payload)))
        FROM (SELECT unnest(lines) AS line, unnest(payloads) AS payload) AS i
        JOIN account_quotas AS q ON q.account_id = accounts[i.line]
        GROUP BY q.account_id;
    END IF;
END
$$;
