-- name: lsn_of
-- The position of a sequence in the log, as text and as the log epoch that is a part of it: 0 while the sequence is not
-- sealed. Raises PS002, PS005, PS006.
CREATE OR REPLACE FUNCTION lsn_of(topic text, partition integer, sequence bigint)
RETURNS TABLE (lsn text, log_epoch integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source bigint := require_partition(topic, partition);
BEGIN
    log_epoch := find_log_epoch_at(source, lsn_of.sequence);
    lsn := format('%s.%s', log_epoch, lsn_of.sequence);
    PERFORM parse_lsn(lsn);
    RETURN NEXT;
END
$$;

-- name: sequence_of
-- The sequence of a position of the log, checked: its log epoch has to be the one that holds the sequence. Log epoch 0
-- is not checked, because the sequence may have been sealed since. Raises PS002, PS005, PS006, PS019.
CREATE OR REPLACE FUNCTION sequence_of(topic text, partition integer, lsn text) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source bigint := require_partition(topic, partition);
BEGIN
    RETURN require_sequence(source, lsn);
END
$$;

-- name: position_at
-- The position before the first event of a partition that was sequenced at a time or later; the high watermark when
-- there is none. If such an event may have been dropped, this raises PS016. Raises PS002, PS005, PS006, PS016.
CREATE OR REPLACE FUNCTION position_at(topic text, partition integer, since timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_partition(topic, partition);
BEGIN
    IF since IS NULL THEN
        PERFORM refuse('PS006', 'the time is NULL', 'Give a time with its zone.');
    END IF;
    RETURN position_before(source_id, (SELECT p.low_sequence FROM partitions AS p WHERE p.id = source_id), since);
END
$$;

-- name: locate_time
-- The position before the first event of a partition that was sequenced at a time or later, where the database knows
-- it. Where such an event may have been dropped, position is NULL, and the log epoch is the one in which to look
-- first: no event before it was sequenced then. Raises PS002, PS005, PS006, PS016.
CREATE OR REPLACE FUNCTION locate_time(topic text, partition integer, since timestamptz)
RETURNS TABLE ("position" bigint, log_epoch integer, first_sequence bigint, last_sequence bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_partition(topic, partition);
BEGIN
    IF since IS NULL THEN
        PERFORM refuse('PS006', 'the time is NULL', 'Give a time with its zone.');
    END IF;
    RETURN QUERY
    SELECT s.position, s.log_epoch, s.first_sequence, s.last_sequence
    FROM partitions AS p CROSS JOIN LATERAL position_since(p.id, p.low_sequence, since) AS s
    WHERE p.id = source_id AND (s.position IS NOT NULL OR s.log_epoch IS NOT NULL);
    IF NOT FOUND THEN
        PERFORM refuse('PS016', format('events sequenced since %s were dropped, and no seal says which', since),
                       'Start at "earliest".');
    END IF;
END
$$;
