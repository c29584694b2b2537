-- By design: MySQL has no COPY.

-- name: prepare_bulk
-- Makes the caller's temporary table for COPY. It belongs to Penstock's owner, so that publish_bulk, which runs with
-- the owner's rights, never reads a table that carries the code of another user.
CREATE OR REPLACE FUNCTION prepare_bulk() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF to_regclass('pg_temp.penstock_bulk') IS NULL THEN
        CREATE TEMPORARY TABLE penstock_bulk (
            place bigint GENERATED ALWAYS AS IDENTITY,
            topic text NOT NULL,
            event_id uuid,
            key text,
            type text,
            content_type text,
            headers jsonb,
            payload bytea NOT NULL,
            partition integer,
            not_before timestamptz
        ) ON COMMIT DELETE ROWS;
        GRANT INSERT ON penstock_bulk TO PUBLIC;
    END IF;
END
$$;

-- name: publish_bulk
-- Publishes what was copied into penstock_bulk since prepare_bulk, in that order. Returns how many. It supports
-- neither dedup keys nor strict order. Raises as publish_batch does; PS006 when the table is not the one that
-- prepare_bulk made.
CREATE OR REPLACE FUNCTION publish_bulk() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET work_mem = '64MB' AS $$
DECLARE
    latest timestamptz := latest_due();
    addresses text[];
    copied bigint;
    published bigint;
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_class AS c
        WHERE c.oid = to_regclass('pg_temp.penstock_bulk') AND c.relkind = 'r'
          AND c.relowner = (SELECT r.oid FROM pg_roles AS r WHERE r.rolname = current_user)
    ) THEN
        PERFORM refuse('PS006', 'there is no prepared table penstock_bulk', 'Call prepare_bulk() first.');
    END IF;
    SELECT array_agg(g.topic), COALESCE(sum(g.events), 0) INTO addresses, copied
    FROM (SELECT b.topic, count(*) AS events FROM pg_temp.penstock_bulk AS b GROUP BY b.topic) AS g;
    IF EXISTS (
        SELECT FROM topics AS t
        WHERE t.max_unsequenced_events IS NOT NULL OR t.max_unsequenced_bytes IS NOT NULL
    ) THEN
        PERFORM require_bulk(addresses);
        PERFORM relieve_bulk();
    END IF;
    INSERT INTO events (partition_id, event_id, key, type, content_type, headers, payload, due_at)
    SELECT choose_partition(t.id, t.partitions, t.strategy, i.key, i.partition), COALESCE(i.event_id, new_event_id()),
           i.key, COALESCE(i.type, ''), COALESCE(i.content_type, 'application/octet-stream'), i.headers, i.payload,
           CASE WHEN i.not_before > clock_timestamp() THEN i.not_before END
    FROM pg_temp.penstock_bulk AS i
    JOIN publishable_topics(addresses) AS t ON t.address = i.topic
    WHERE event_problem(
          octet_length(i.payload), i.key, i.type, i.content_type, i.headers, i.partition, i.not_before, NULL,
          t.partitions, t.strategy, t.max_payload_bytes, latest) IS NULL
    ORDER BY i.place;
    GET DIAGNOSTICS published = ROW_COUNT;
    IF published < copied THEN
        PERFORM require_bulk(addresses);
    END IF;
    IF acts_within_quota() THEN
        PERFORM charge_account(
            published, (SELECT sum(octet_length(b.payload)) FROM pg_temp.penstock_bulk AS b));
    END IF;
    TRUNCATE pg_temp.penstock_bulk;
    RETURN published;
END
$$;
