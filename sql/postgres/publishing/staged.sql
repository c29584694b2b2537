-- name: stage_events
-- Stores a chunk of events that a later transaction publishes by publish_staged. The stage is a UUID that the caller
-- makes for one attempt to write; chunks have numbers from 0. The arguments are those of publish_batch. Nothing is
-- checked here but the size: the events are checked when they are published. Raises PS006.
CREATE OR REPLACE FUNCTION stage_events(
    stage uuid, chunk integer, topics text[], payloads bytea[], keys text[], types text[], content_types text[],
    headers text[], event_ids uuid[], partitions integer[], not_befores timestamptz[] DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF stage IS NULL OR chunk IS NULL OR chunk < 0 OR COALESCE(cardinality(topics), 0) NOT BETWEEN 1 AND 10000
        OR cardinality(payloads) IS DISTINCT FROM cardinality(topics) THEN
        PERFORM refuse('PS006', format('a chunk %s of %s events', chunk, COALESCE(cardinality(topics), 0)),
                       'Number chunks from 0, and stage 1 to 10,000 events at a time.');
    END IF;
    INSERT INTO staged_writes (
        stage, chunk, login, topics, payloads, keys, types, content_types, headers, event_ids, partitions, not_befores)
    VALUES (stage, chunk, principal(), topics, payloads, keys, types, content_types, stage_events.headers, event_ids,
            stage_events.partitions, not_befores);
END
$$;

-- name: claim_rows
-- Claims a version of a writer for the caller's transaction. True: publish its stages in this transaction. False: the
-- version was published before, so there is nothing to do. events and digest say which rows they are: how many, and a
-- text of at most 100 characters that is the same for the same rows in any order. A version that was published before
-- with other rows is refused, because nobody would ever publish these (PS028). NULL: nothing is compared. While another
-- transaction has claimed the version, this waits for the end of that one. The newest 1,000 versions of a writer are
-- known; an older one is refused, because nobody knows whether it was published. Raises PS006, PS026, PS028.
CREATE OR REPLACE FUNCTION claim_rows(writer text, version bigint, events bigint, digest text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    known bigint := 1000;
    newest bigint;
    before bigint;
BEGIN
    PERFORM require_read_committed('claim_rows()');
    PERFORM require_name(writer, 'writer');
    IF version IS NULL OR version NOT BETWEEN 0 AND 1000000000000000000 THEN
        PERFORM refuse('PS006', format('a version of %s', version), 'Versions are whole numbers from 0 on.');
    END IF;
    IF events < 0 OR length(digest) > 100 OR (events IS NULL) <> (digest IS NULL) THEN
        PERFORM refuse('PS006', format('%s events with a digest of %s characters', events, length(digest)),
                       'Give both or none: a number from 0 on, and at most 100 characters.');
    END IF;
    SELECT max(c.version) INTO newest
    FROM claimed_writes AS c
    WHERE c.login = principal() AND c.writer = claim_rows.writer;
    IF version <= newest - known THEN
        PERFORM refuse('PS026', format('version %s of writer "%s" is too old: it is at version %s', version, writer,
                                       newest),
                       'Write under another name, or with a higher version.');
    END IF;
    INSERT INTO claimed_writes (login, writer, version, events, digest)
    VALUES (principal(), writer, version, events, digest)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT c.events INTO before
        FROM claimed_writes AS c
        WHERE c.login = principal() AND c.writer = claim_rows.writer AND c.version = claim_rows.version
            AND (c.events, c.digest) <> (claim_rows.events, claim_rows.digest);
        IF FOUND THEN
            PERFORM refuse('PS028',
                           format('version %s of writer "%s" was published before, with other rows: %s then, %s now',
                                  version, writer, before, events),
                           'Write these rows with a higher version, or under another name.');
        END IF;
        RETURN false;
    END IF;
    DELETE FROM claimed_writes AS c
    WHERE c.login = principal() AND c.writer = claim_rows.writer AND c.version <= claim_rows.version - known;
    RETURN true;
END
$$;

-- name: claim_write
-- As claim_rows, without saying which rows they are: a repetition is not compared. Raises PS006, PS026.
CREATE OR REPLACE FUNCTION claim_write(writer text, version bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN claim_rows(writer, version, NULL, NULL);
END
$$;

-- name: publish_staged
-- Publishes a stage of this login in the caller's transaction, chunk by chunk, and removes it. events is how many it
-- has to have: when chunks are missing, it refuses. Returns how many were published. Each chunk goes through the
-- checks of publish_batch. Raises PS002, PS004, PS005, PS006, PS022, PS026, PS052.
CREATE OR REPLACE FUNCTION publish_staged(stage uuid, events bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    part record;
    total bigint := 0;
BEGIN
    PERFORM commit_durably();
    FOR part IN
        SELECT p.published
        FROM (
            SELECT s.* FROM staged_writes AS s
            WHERE s.stage = publish_staged.stage AND s.login = principal()
            ORDER BY s.chunk
            OFFSET 0
        ) AS s
        CROSS JOIN LATERAL publish_batch(s.topics, s.payloads, s.keys, s.types, s.content_types, s.headers,
                                         s.event_ids, s.partitions, s.not_befores) AS p
    LOOP
        total := total + part.published;
    END LOOP;
    IF total IS DISTINCT FROM events THEN
        PERFORM refuse('PS026', format('of %s staged events %s are there', events, total),
                       'They were removed as orphans, or the server has crashed. Write again.');
    END IF;
    DELETE FROM staged_writes AS s WHERE s.stage = publish_staged.stage AND s.login = principal();
    RETURN total;
END
$$;

-- name: discard_staged
-- Removes stages of this login that are not to be published. Returns how many chunks those were.
CREATE OR REPLACE FUNCTION discard_staged(stages uuid[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    removed bigint;
BEGIN
    DELETE FROM staged_writes AS s WHERE s.stage = ANY (stages) AND s.login = principal();
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;

-- name: sweep_staged
-- Removes chunks that nobody has published for so long that their writer must be gone: at most max_rows, the oldest
-- first. Chunks that a transaction is just publishing are left out. Returns how many. Raises PS006.
CREATE OR REPLACE FUNCTION sweep_staged(max_age_seconds double precision, max_rows integer DEFAULT 1000)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    removed bigint;
BEGIN
    IF max_age_seconds IS NULL OR NOT max_age_seconds >= 0 OR max_rows IS NULL OR max_rows < 1 THEN
        PERFORM refuse('PS006', format('staged events older than %s seconds', max_age_seconds), 'Give 0 or more.');
    END IF;
    DELETE FROM staged_writes AS s
    WHERE (s.stage, s.chunk) IN (
        SELECT o.stage, o.chunk FROM staged_writes AS o
        WHERE o.staged_at <= clock_timestamp() - make_interval(secs => max_age_seconds)
        ORDER BY o.staged_at
        LIMIT max_rows
        FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;
