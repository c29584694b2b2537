-- name: take_turn
-- The next of the topic's partitions for events without a key. Each session takes turns by itself, from its own
-- starting point, because all sessions would wait for the row of a shared counter. The session may write anything
-- into the variable. So unless it holds a number that take_turn left there, the turns begin anew: MOD of a negative
-- number is negative, and would give a partition of the topic with the id before.
CREATE PROCEDURE take_turn(steps INT, OUT turn BIGINT)
NO SQL
BEGIN
    SET turn = IF(CAST(@penstock_turn AS CHAR) REGEXP '^[0-9]{1,15}$', @penstock_turn, FLOOR(RAND() * 65536));
    SET @penstock_turn = turn + steps;
END;
