-- By design: MySQL has no NOTIFY.

-- name: announce
-- Tells listening consumers, when the transaction commits, which partitions grew: in one NOTIFY of at most 4,000
-- bytes, else it says "all". It sends none while the queue of notices is more than half full, because a full queue
-- would make the commit fail. Consumers also look by themselves.
CREATE OR REPLACE FUNCTION announce(grown bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    names text := array_to_string(grown, ',');
BEGIN
    IF notices_used() < 0.5 THEN
        PERFORM pg_notify(current_schema() || '_log', CASE WHEN octet_length(names) <= 4000 THEN names ELSE 'all' END);
    END IF;
END
$$;

-- name: wake_sequencer
-- Lets an idle sequencer look at once, instead of at the end of its rest. For publishers: after the COMMIT, as a
-- statement of its own. Returns whether a notice was sent. It sends none if a pass has found something within the last
-- 10 milliseconds, because the next look then comes soon by itself, nor while the queue of notices is more than half
-- full. Raises PS006 in a transaction that has written: its COMMIT would take the lock that all commits with a notice
-- share.
CREATE OR REPLACE FUNCTION wake_sequencer() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM refuse('PS006', 'wake_sequencer() in a transaction that has written',
                       'Commit first. Then call it as a statement of its own.');
    END IF;
    IF clock_timestamp() < (SELECT t.passed_at FROM ticks AS t ORDER BY t.id DESC LIMIT 1) + interval '10 milliseconds'
        OR notices_used() >= 0.5 THEN
        RETURN false;
    END IF;
    PERFORM pg_notify(current_schema() || '_wake', '');
    RETURN true;
END
$$;
