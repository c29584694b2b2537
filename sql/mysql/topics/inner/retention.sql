-- name: sort_targets
-- The names of archive targets in a JSON array, each once and in order, as a JSON array again. Raises PS006.
CREATE PROCEDURE sort_targets(targets JSON, OUT sorted VARCHAR(4000))
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    DECLARE bad INT;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT COUNT(CASE WHEN NOT COALESCE(
                     t.name REGEXP '^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$' AND INSTR(t.name, CHAR(10)) = 0, FALSE)
                 THEN 1 END),
           CONCAT('[', COALESCE(GROUP_CONCAT(DISTINCT CONCAT('"', t.name, '"') ORDER BY t.name SEPARATOR ', '), ''),
                  ']')
    INTO bad, sorted
    FROM JSON_TABLE(targets, '$[*]' COLUMNS (name VARCHAR(500) PATH '$')) AS t;
    SET SESSION group_concat_max_len = limit_before;
    IF bad > 0 THEN
        CALL refuse('PS006', 'a target of the retention policy has a name that is not allowed');
    END IF;
END;
