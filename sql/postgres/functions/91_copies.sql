-- name: copies_of
-- Every copy of a topic's log epochs that was ever recorded: verified, or missing
-- since changed_at for the reason in detail; location, layout and first_row: see record_copy.
CREATE OR REPLACE FUNCTION copies_of(topic text)
RETURNS TABLE (
    partition integer, log_epoch integer, target text, state text, detail text, changed_at timestamptz,
    location text, layout smallint, first_row bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT p.number, c.log_epoch, c.target, c.state, c.detail, c.changed_at, c.location, c.layout, c.first_row
    FROM partitions AS p JOIN epoch_copies AS c ON c.partition_id = p.id
    WHERE p.topic_id = require_topic(copies_of.topic)
    ORDER BY p.number, c.log_epoch, c.target;
END
$$;

-- name: installation_id
-- Whose the archive targets are that carry this id in their marker: it belongs to the database and goes with its
-- backups.
CREATE OR REPLACE FUNCTION installation_id() RETURNS uuid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT i.id FROM installation AS i
$$;

-- name: target_in_use
-- Whether copies were ever recorded on a target, whatever became of them: then a target that looks empty is not there.
CREATE OR REPLACE FUNCTION target_in_use(target text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT EXISTS (SELECT FROM epoch_copies AS c WHERE c.target = target_in_use.target)
$$;

-- name: copies_on
-- The copies on a target that are recorded as verified, of the topics that the login may see: what a target has to hold
-- to be the one that they were written to.
CREATE OR REPLACE FUNCTION copies_on(target text)
RETURNS TABLE (known_as text, partition integer, log_epoch integer, event_count bigint, last_sequence bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.known_as, p.number, e.log_epoch, e.event_count, e.last_sequence
    FROM epoch_copies AS c
    JOIN log_epochs AS e ON e.partition_id = c.partition_id AND e.log_epoch = c.log_epoch
    JOIN partitions AS p ON p.id = c.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE c.target = copies_on.target AND c.state = 'verified'
      AND (NOT t.restricted OR has_right(t.namespace_id, 'any'))
    ORDER BY t.known_as, p.number, e.log_epoch
$$;
