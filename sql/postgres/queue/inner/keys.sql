-- name: key_digest
-- What queue_keys keeps of a key. It is STABLE because convert_to is; as IMMUTABLE it could not be inlined into the
-- query that calls it.
CREATE OR REPLACE FUNCTION key_digest(key text) RETURNS bytea
LANGUAGE sql STABLE AS $$
    SELECT substring(sha256(convert_to(key_digest.key, 'UTF8')) FOR 16)
$$;

-- name: deal_in_order
-- What deal does, for a queue that keeps the order of keys: each event comes alone, and of a key only the first one
-- comes into the window.
CREATE OR REPLACE FUNCTION deal_in_order(owner_id bigint, room bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    part record;
BEGIN
    IF room <= 0 THEN
        RETURN;
    END IF;
    FOR part IN SELECT u.* FROM undealt_parts(owner_id, room, 1) AS u LOOP
        PERFORM deal_keys(owner_id, part.partition_id, part.after, part.until);
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason, reached)
        VALUES (owner_id, part.partition_id, part.position, part.lease_epoch, 'queue', part.until);
    END LOOP;
END
$$;

-- name: deal_keys
-- Deals the next events of a partition in the order of their keys. An event waits behind the first one of its key. The
-- lock on that one holds whoever is about to finish it, who then sees what waits. When it is locked already, its
-- holder may not see what is dealt now, so the dealer looks again at its next turn.
CREATE OR REPLACE FUNCTION deal_keys(owner_id bigint, part_id bigint, after bigint, until bigint) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
BEGIN
    WITH fresh AS MATERIALIZED (
        SELECT s AS sequence, key_digest(l.key) AS key_digest
        FROM generate_series(deal_keys.after + 1, deal_keys.until) AS s
        LEFT JOIN read_log(part_id, deal_keys.after + 1, (deal_keys.until - deal_keys.after)::integer) AS l
            ON l.sequence = s
    ), present AS MATERIALIZED (
        SELECT DISTINCT f.key_digest
        FROM fresh AS f
        JOIN queue_keys AS k
            ON k.subscription_id = owner_id AND k.partition_id = part_id AND k.key_digest = f.key_digest
    ), held AS MATERIALIZED (
        SELECT k.key_digest
        FROM present AS p
        JOIN queue_keys AS k
            ON k.subscription_id = owner_id AND k.partition_id = part_id AND k.key_digest = p.key_digest
            AND k.state = 'first'
        FOR UPDATE OF k SKIP LOCKED
    ), placed AS MATERIALIZED (
        SELECT f.sequence, f.key_digest, CASE
                   WHEN h.key_digest IS NOT NULL THEN 'behind'
                   WHEN p.key_digest IS NOT NULL THEN 'unsure'
                   WHEN row_number() OVER (PARTITION BY f.key_digest ORDER BY f.sequence) = 1 THEN 'first'
                   ELSE 'behind' END AS state
        FROM fresh AS f
        LEFT JOIN present AS p ON p.key_digest = f.key_digest
        LEFT JOIN held AS h ON h.key_digest = f.key_digest
    ), noted AS (
        INSERT INTO queue_keys (subscription_id, partition_id, sequence, key_digest, state)
        SELECT owner_id, part_id, p.sequence, p.key_digest, p.state FROM placed AS p WHERE p.key_digest IS NOT NULL
    )
    INSERT INTO queue_ranges (subscription_id, partition_id, first_sequence, last_sequence)
    SELECT owner_id, part_id, p.sequence, p.sequence
    FROM placed AS p
    WHERE p.key_digest IS NULL OR p.state = 'first'
    ORDER BY p.sequence;
END
$$;

-- name: events_behind
-- How many events wait behind another one of their key.
CREATE OR REPLACE FUNCTION events_behind(queue queues) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF queue."order" = 'none' THEN
        RETURN 0;
    END IF;
    RETURN count(*)
    FROM queue_keys AS k
    WHERE k.subscription_id = queue.subscription_id AND k.state <> 'first';
END
$$;

-- name: has_unsure
-- Whether the dealer has to look again at events that wait for their key.
CREATE OR REPLACE FUNCTION has_unsure(owner_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM queue_keys AS k WHERE k.subscription_id = owner_id AND k.state = 'unsure');
END
$$;

-- name: settle_keys
-- Looks again at events of which it was not sure whether whoever finishes the first one of their key sees them. Of a
-- key that has no first one any more, the next one comes into the window. Where the first one is locked still, they
-- are left to the next turn. The limit is over keys that nobody has locked, or one with many events would keep back
-- all the others. Returns whether there may be more.
CREATE OR REPLACE FUNCTION settle_keys(owner_id bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    parts bigint[];
    digests bytea[];
    settled_keys bigint;
BEGIN
    WITH unsure AS MATERIALIZED (
        SELECT DISTINCT u.partition_id, u.key_digest
        FROM queue_keys AS u
        WHERE u.subscription_id = owner_id AND u.state = 'unsure'
    ), held AS MATERIALIZED (
        SELECT k.partition_id, k.key_digest
        FROM unsure AS u
        JOIN queue_keys AS k
            ON k.subscription_id = owner_id AND k.partition_id = u.partition_id AND k.key_digest = u.key_digest
            AND k.state = 'first'
        LIMIT 1000
        FOR UPDATE OF k SKIP LOCKED
    ), sure AS MATERIALIZED (
        SELECT h.partition_id, h.key_digest, false AS ended FROM held AS h
        UNION ALL
        (SELECT u.partition_id, u.key_digest, true
        FROM unsure AS u
        WHERE NOT EXISTS (
            SELECT FROM queue_keys AS k
            WHERE k.subscription_id = owner_id AND k.partition_id = u.partition_id AND k.key_digest = u.key_digest
              AND k.state = 'first')
        LIMIT 1000)
    ), settled AS (
        UPDATE queue_keys AS k SET state = 'behind'
        FROM sure AS s
        WHERE k.subscription_id = owner_id AND k.partition_id = s.partition_id AND k.key_digest = s.key_digest
          AND k.state = 'unsure'
    )
    SELECT array_agg(s.partition_id) FILTER (WHERE s.ended), array_agg(s.key_digest) FILTER (WHERE s.ended), count(*)
    INTO parts, digests, settled_keys
    FROM sure AS s;
    PERFORM bring_next(owner_id, parts, digests);
    RETURN settled_keys >= 1000;
END
$$;

-- name: bring_next
-- Brings the next event of each key into the window, when its first one has gone. Key by key, each by its index: one
-- query over all keys was planned while the table was empty, and looked at all keys for each event that waits. A key is
-- asked for as a range, so that no other index has the order.
CREATE OR REPLACE FUNCTION bring_next(owner_id bigint, parts bigint[], digests bytea[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    ended record;
    next record;
    brought_parts bigint[] := '{}';
    sequences bigint[] := '{}';
    copies bigint[] := '{}';
BEGIN
    FOR ended IN
        SELECT DISTINCT g.partition_id, g.key_digest FROM unnest(parts, digests) AS g (partition_id, key_digest)
    LOOP
        UPDATE queue_keys AS k SET state = 'first'
        WHERE k.subscription_id = owner_id AND k.partition_id = ended.partition_id AND k.state <> 'first'
          AND (k.sequence, k.waiting_id) = (
            SELECT w.sequence, w.waiting_id
            FROM queue_keys AS w
            WHERE w.subscription_id = owner_id AND w.partition_id = ended.partition_id
              AND w.key_digest >= ended.key_digest AND w.key_digest <= ended.key_digest
            ORDER BY w.key_digest, w.sequence, w.waiting_id
            LIMIT 1)
        RETURNING k.sequence, k.waiting_id INTO next;
        IF FOUND THEN
            brought_parts := brought_parts || ended.partition_id;
            sequences := sequences || next.sequence;
            copies := copies || NULLIF(next.waiting_id, 0);
        END IF;
    END LOOP;
    INSERT INTO queue_ranges (subscription_id, partition_id, first_sequence, last_sequence, waiting_id)
    SELECT owner_id, b.partition_id, b.sequence, b.sequence, b.waiting_id
    FROM unnest(brought_parts, sequences, copies) AS b (partition_id, sequence, waiting_id)
    ORDER BY b.partition_id, b.sequence;
END
$$;

-- name: finish_keys
-- Ends the turn of events that are finished or dead, if the queue keeps the order of keys: the next one of each key
-- comes into the window.
CREATE OR REPLACE FUNCTION finish_keys(queue queues, pieces queue_piece[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    parts bigint[];
    digests bytea[];
BEGIN
    IF queue."order" = 'none' THEN
        RETURN;
    END IF;
    WITH gone AS (
        DELETE FROM queue_keys AS k
        USING unnest(pieces) AS p
        WHERE k.subscription_id = queue.subscription_id AND k.partition_id = p.partition_id
          AND k.sequence = p.first_sequence AND k.waiting_id = COALESCE(p.waiting_id, 0)
        RETURNING k.partition_id, k.key_digest
    )
    SELECT array_agg(g.partition_id), array_agg(g.key_digest) INTO parts, digests FROM gone AS g;
    -- A statement of its own: it sees what the dealer has put behind them while the row was locked.
    IF parts IS NOT NULL THEN
        PERFORM bring_next(queue.subscription_id, parts, digests);
    END IF;
END
$$;

-- name: carry_keys
-- Notes the copies of events that copy_out has made. Of what is in the log no more, the turn ends.
CREATE OR REPLACE FUNCTION carry_keys(queue queues, pieces queue_piece[], copied queue_piece[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    IF queue."order" = 'none' THEN
        RETURN;
    END IF;
    UPDATE queue_keys AS k SET waiting_id = c.waiting_id
    FROM unnest(copied) AS c
    WHERE k.subscription_id = queue.subscription_id AND k.partition_id = c.partition_id
      AND k.sequence = c.first_sequence AND k.waiting_id = 0;
    PERFORM finish_keys(queue, ARRAY(
        SELECT p FROM unnest(pieces) AS p
        WHERE p.waiting_id IS NULL AND NOT EXISTS (
            SELECT FROM unnest(copied) AS c
            WHERE c.partition_id = p.partition_id AND c.first_sequence = p.first_sequence)));
END
$$;

-- name: cut_back_keys
-- What cut_back does, for what waits behind a key. What may have waited for an event that is gone is looked at again.
CREATE OR REPLACE FUNCTION cut_back_keys(owner_id bigint, part_id bigint, watermark bigint) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM queue_keys AS k
    WHERE k.subscription_id = owner_id AND k.partition_id = part_id AND k.sequence > watermark AND k.waiting_id = 0;
    UPDATE queue_keys AS k SET state = 'unsure'
    WHERE k.subscription_id = owner_id AND k.partition_id = part_id AND k.state = 'behind';
$$;
