-- By design: MySQL's fast way for plain events takes packed bytes; PostgreSQL's is publish_columns.

-- name: publish_packed
-- Publishes many plain events, in order: the fast way of a program's publish_batch. Of each event, heads holds 90
-- characters: the number of its topic in addresses (a JSON array; 5 characters), its partition (5), then
-- for key, type, content type, headers and payload where in body the value begins and how many bytes it has (8 each).
-- A dash is a partition, key or headers that are not given. body begins with the 16 bytes of each event's id. Returns
-- how many were published: all, or NULL when this way cannot take one of them. Then nothing was published, and
-- publish_batch tells why or takes it. Raises PS006, PS018, PS022.
CREATE PROCEDURE publish_packed(addresses JSON, heads LONGBLOB, body LONGBLOB)
BEGIN
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    DECLARE all_events INT DEFAULT LENGTH(heads) DIV 90;
    DECLARE facts, blocks LONGBLOB;
    DECLARE published, bytes BIGINT;
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('publish_packed()');
    CALL look_at_packed(addresses, facts);
    IF facts IS NOT NULL AND all_events BETWEEN 1 AND 65536 AND LENGTH(body) >= 16 * all_events THEN
        CALL insert_packed(facts, heads, body, published, blocks);
        IF NOT COALESCE(published = all_events, FALSE) THEN
            ROLLBACK TO SAVEPOINT penstock_call;
            SET published = NULL;
        ELSEIF acts_within_quota() THEN
            SELECT SUM(SUBSTR(heads, 90 * l.n + 83, 8)) INTO bytes FROM numbers AS l WHERE l.n < all_events;
            CALL charge_account(published, bytes);
        END IF;
        DO LAST_INSERT_ID(id_before);
    END IF;
    SELECT published AS published;
    CALL end_call();
END;
