-- name: letter_move_room
-- How many events of a move may be moved now: those of its rate since it began, less those that were, and no more than
-- were there when it began. After a pause it makes up for ten seconds at most.
CREATE OR REPLACE FUNCTION letter_move_room(one letter_moves) RETURNS integer
LANGUAGE plpgsql STABLE AS $$
DECLARE
    left_over bigint := LEAST(one.expected - one.moved, 1000);
    seconds double precision := extract(epoch FROM clock_timestamp() - one.started_at);
BEGIN
    IF one.most_per_second IS NULL THEN
        RETURN left_over;
    END IF;
    RETURN LEAST(floor(seconds * one.most_per_second)::bigint - one.moved, one.most_per_second * 10, left_over);
END
$$;
