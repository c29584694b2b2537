-- By design: PostgreSQL puts a new table in the place of slices of the index, MySQL writes chunks again.

-- name: find_run
-- The first run of small chunks of a partition, at most 1,000 of them, that together make a full chunk, or at least
-- twice the largest of them. So an event is moved only a few times in its life. NULL when there is no such run.
CREATE PROCEDURE find_run(part_id BIGINT, low BIGINT, OUT run_first BIGINT, OUT run_last BIGINT)
READS SQL DATA
BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET run_first = NULL, run_last = NULL;
    SELECT MIN(r.first_sequence), MAX(r.first_sequence) INTO run_first, run_last
    FROM (
        SELECT c.first_sequence, c.event_count, SUM(c.event_count >= 500) OVER (ORDER BY c.first_sequence) AS island
        FROM chunks AS c
        WHERE c.partition_id = part_id AND c.first_sequence + c.event_count > low
    ) AS r
    WHERE r.event_count < 500
    GROUP BY r.island
    HAVING COUNT(*) >= 2 AND SUM(r.event_count) >= LEAST(1000, 2 * MAX(r.event_count))
    ORDER BY MIN(r.first_sequence)
    LIMIT 1;
    SELECT MAX(s.first_sequence) INTO run_last
    FROM (
        SELECT c.first_sequence
        FROM chunks AS c
        WHERE c.partition_id = part_id AND c.first_sequence BETWEEN run_first AND run_last
        ORDER BY c.first_sequence
        LIMIT 1000
    ) AS s;
END;

-- name: fill_merged
-- Writes the events of a run into new chunks, in the session's table merged. An event keeps the time of its
-- sequencing.
CREATE PROCEDURE fill_merged(part_id BIGINT, run_first BIGINT, run_last BIGINT)
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4194304;
    CREATE TEMPORARY TABLE IF NOT EXISTS merged (
        first_sequence BIGINT NOT NULL PRIMARY KEY, event_count INT NOT NULL, first_id BIGINT NOT NULL,
        last_id BIGINT NOT NULL, event_ids LONGBLOB NOT NULL, sequenced_at DATETIME(6) NOT NULL, sequenced_ats LONGBLOB
    ) ENGINE = InnoDB;
    DELETE FROM merged;
    INSERT INTO merged (first_sequence, event_count, first_id, last_id, event_ids, sequenced_at, sequenced_ats)
    SELECT MIN(e.sequence), COUNT(*), MIN(e.id), MAX(e.id),
           GROUP_CONCAT(UNHEX(LPAD(HEX(e.id), 16, '0')) ORDER BY e.sequence SEPARATOR ''),
           TIMESTAMP'1970-01-01 00:00:00' + INTERVAL MAX(e.at) MICROSECOND,
           IF(MIN(e.at) = MAX(e.at), NULL,
              GROUP_CONCAT(UNHEX(LPAD(HEX(e.at), 16, '0')) ORDER BY e.sequence SEPARATOR ''))
    FROM (
        SELECT STRAIGHT_JOIN c.first_sequence + l.n AS sequence,
               CAST(CONV(HEX(SUBSTR(c.event_ids, 8 * l.n + 1, 8)), 16, 10) AS SIGNED) AS id,
               COALESCE(CAST(CONV(HEX(SUBSTR(c.sequenced_ats, 8 * l.n + 1, 8)), 16, 10) AS SIGNED),
                        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', c.sequenced_at)) AS at
        FROM chunks AS c
        JOIN places AS l ON l.size = 1 << CAST(CEIL(LOG2(c.event_count)) AS UNSIGNED) AND l.n < c.event_count
        WHERE c.partition_id = part_id AND c.first_sequence BETWEEN run_first AND run_last
    ) AS e
    GROUP BY (e.sequence - run_first) DIV 1000;
    SET SESSION group_concat_max_len = limit_before;
END;
