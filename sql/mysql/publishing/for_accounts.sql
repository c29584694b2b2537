-- name: publish_for_accounts
-- Publishes plain events of many accounts in one transaction: for a gateway, so that tenants share a commit. lines is a
-- JSON array of objects: account (its id), key_id (a key that its caller has shown) and topic. heads and body are those
-- of publish_packed, with the number of the line instead of that of the topic. Each line is checked by itself, as
-- act_as and publish would do. Returns the places (from 0) of the events that are not published: the key is not good
-- now, the account lacks the right or has used its quota, or topic or event are not plain or not good. In a transaction
-- of its own the account learns what it was. The others are published, in their order. Raises PS018, PS051.
CREATE PROCEDURE publish_for_accounts(`lines` JSON, heads LONGBLOB, body LONGBLOB)
BEGIN
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    DECLARE all_events INT DEFAULT LENGTH(heads) DIV 90;
    DECLARE facts, blocks LONGBLOB;
    DECLARE published BIGINT DEFAULT 0;
    DECLARE problem VARCHAR(200);
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('publish_for_accounts()');
    CALL own_gateway_problem(problem);
    IF problem IS NOT NULL THEN
        CALL refuse('PS051', CONCAT('the login cannot act for accounts: it ', problem));
    END IF;
    SET blocks = '';
    IF all_events BETWEEN 1 AND 65536 AND LENGTH(body) >= 16 * all_events THEN
        CALL look_at_lines(`lines`, facts);
        CALL insert_packed(facts, heads, body, published, blocks);
        IF published > 0 THEN
            CALL charge_lines(`lines`, heads, blocks);
        ELSE
            ROLLBACK TO SAVEPOINT penstock_call;
        END IF;
        DO LAST_INSERT_ID(id_before);
    END IF;
    -- Read back from the table, so that those that are written and those that are returned are never the same.
    SELECT l.n AS place
    FROM numbers AS l
    WHERE l.n < all_events AND published < all_events AND NOT EXISTS (
        SELECT 1 FROM events AS e
        WHERE e.id = CAST(CONV(HEX(SUBSTR(blocks, 8 * (l.n DIV 256) + 1, 8)), 16, 10) AS SIGNED) * 256 + MOD(l.n, 256))
    ORDER BY l.n;
    CALL end_call();
END;
