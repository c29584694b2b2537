-- name: current_history
-- The line of history that positions belong to now.
CREATE OR REPLACE FUNCTION current_history() RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN max(h.history) FROM histories AS h;
END
$$;

-- name: histories_of
-- The histories of the log, and why each began.
CREATE OR REPLACE FUNCTION histories_of() RETURNS TABLE (history integer, reason text, opened_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT h.history, h.reason, h.opened_at FROM histories AS h ORDER BY h.history
$$;

-- name: history_starts_of
-- How far a reader outside the database may keep a position that it has in a history: to the lowest end of the log at
-- which a later history began. What is above is other events now, also when the log has grown beyond the position
-- since. No later history: the end of the log. NULL where a later history began before this was recorded. Raises
-- PS002.
CREATE OR REPLACE FUNCTION history_starts_of(topic text, history integer)
RETURNS TABLE (partition integer, "position" bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_topic(topic);
    later bigint := (SELECT count(*) FROM histories AS h WHERE h.history > history_starts_of.history);
    recorded bigint := (
        SELECT count(DISTINCT s.history) FROM history_starts AS s WHERE s.history > history_starts_of.history);
BEGIN
    RETURN QUERY
    SELECT p.number,
           CASE WHEN later = 0 THEN high_watermark(p.id)
                -- A partition that was not there when a history began held nothing then.
                WHEN recorded = later THEN (
                    SELECT CASE WHEN count(*) = later THEN min(s.position) ELSE 0 END
                    FROM history_starts AS s
                    WHERE s.partition_id = p.id AND s.history > history_starts_of.history)
           END
    FROM partitions AS p
    WHERE p.topic_id = source_id
    ORDER BY p.number;
END
$$;

-- name: reconcile
-- After a restore that lost commits: begins the next history, so that within one history no sequence means two
-- events, and lets stopped partitions continue. Returns the number of the new history. Raises PS006, PS018.
CREATE OR REPLACE FUNCTION reconcile(reason text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('reconcile()');
    IF COALESCE(reason, '') ~ $p$^\s*\Z$p$ THEN
        PERFORM refuse('PS006', 'a new history needs a reason', 'Say what was restored, and from when.');
    ELSIF char_length(reason) > 1000 THEN
        PERFORM refuse('PS006', format('the reason of a history has %s characters', char_length(reason)),
                       'Use at most 1,000 characters.');
    END IF;
    -- The sequencer is locked last, as in a deletion, so that the log does not wait for a consumer that is
    -- inside a transaction.
    PERFORM FROM leases AS l ORDER BY l.subscription_id, l.partition_id FOR UPDATE;
    PERFORM FROM sequencer FOR UPDATE;
    RETURN open_history(reason);
END
$$;
