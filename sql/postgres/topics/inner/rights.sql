-- name: refresh_restricted
-- Records in each topic at and below a namespace whether the topic is restricted; publish reads that together with
-- the topic.
CREATE OR REPLACE FUNCTION refresh_restricted(namespace_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    subtree bigint[] := namespaces_below(namespace_id);
BEGIN
    PERFORM FROM topics AS t WHERE t.namespace_id = ANY (subtree) ORDER BY t.address FOR NO KEY UPDATE;
    UPDATE topics AS t SET restricted = n.restricted
    FROM (SELECT i.id, is_restricted(i.id) AS restricted FROM unnest(subtree) AS i (id) OFFSET 0) AS n
    WHERE t.namespace_id = n.id AND t.restricted <> n.restricted;
END
$$;

-- name: require_verb
-- Checks a right; raises PS006.
CREATE OR REPLACE FUNCTION require_verb(verb text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF verb IS NULL
        OR verb NOT IN ('publish', 'consume', 'operate', 'read', 'receive', 'acknowledge', 'peek') THEN
        PERFORM refuse('PS006', format('there is no right "%s"', left(verb, 200)),
                       'The rights are publish, consume, operate, read, receive, acknowledge and peek.');
    END IF;
END
$$;
