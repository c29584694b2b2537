-- By design: a slice is a table of its own on PostgreSQL, and a partition that only a program can make on MySQL.

-- name: slices_ready
-- How many ids each insert-only table can still take, for how many days that is enough at the peak rate so
-- far (NULL: no rate is known yet), and how many slices it has. A login that does not pass the walls gets no
-- rows, because they tell how much all tenants publish.
CREATE PROCEDURE slices_ready()
READS SQL DATA
BEGIN
    CALL refuse_serializable('slices_ready()');
    SELECT s.parent, u.used AS used, MAX(s.last_id) - u.used AS ready,
           (MAX(s.last_id) - u.used) / NULLIF(MAX(r.peak_per_second), 0) / 86400 AS days, COUNT(*) AS slices
    FROM slices AS s
    JOIN slice_sources AS u ON u.parent = s.parent
    LEFT JOIN slice_rates AS r ON r.parent = s.parent
    WHERE sees_all() OR passes_walls('grant', roles_of_caller())
    GROUP BY s.parent, u.used
    ORDER BY s.parent;
END;

-- name: note_slice_rates
-- Records how fast each table uses ids: the most in one hour, halved for every week since then. A call within
-- the same hour does nothing.
CREATE PROCEDURE note_slice_rates()
BEGIN
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    {{on error: CALL undo_call()}}
    CALL begin_call('note_slice_rates()');
    -- INSERT .. SELECT, because an UPDATE with a join locks what it reads: it would wait for every open publisher. It
    -- assigns in this order, and each assignment sees those before it.
    INSERT INTO slice_rates (parent, used, measured_at)
    SELECT s.parent, s.used, present FROM slice_sources AS s
    ON DUPLICATE KEY UPDATE
        peak_per_second = IF(measured_at > present - INTERVAL 1 HOUR, peak_per_second, GREATEST(
            (VALUES(used) - slice_rates.used) / TIMESTAMPDIFF(SECOND, measured_at, present),
            peak_per_second * POW(0.5, TIMESTAMPDIFF(SECOND, measured_at, present) / 604800))),
        used = IF(measured_at > present - INTERVAL 1 HOUR, slice_rates.used, VALUES(used)),
        measured_at = IF(measured_at > present - INTERVAL 1 HOUR, measured_at, present);
    CALL end_call();
END;

-- name: missing_slices
-- The tables that need another slice: where it begins and where it ends (not included). Enough ids have to be ready
-- for seven days at the peak rate, for a young table a fixed number, and never fewer than events have used so far.
-- Slices are small at first, so that a young log can be cleaned early. Later a slice is a fixed share of what has to
-- be ready, so that there are few slices: every look-up reads each of them. Ids of events come in blocks of 256.
CREATE PROCEDURE missing_slices()
READS SQL DATA
BEGIN
    CALL refuse_serializable('missing_slices()');
    SELECT w.parent, w.end_id AS start_id,
           w.end_id + IF(w.parent = 'events',
               LEAST(GREATEST(2560000, w.spanned),
                     GREATEST(2560000000, w.wanted DIV 4, w.spanned DIV 16)) DIV 256 * 256,
               LEAST(GREATEST(100000, w.spanned * 4), GREATEST(10000000, w.wanted DIV 2, w.spanned DIV 4))) AS end_id
    FROM (
        SELECT s.parent, u.used, MAX(s.last_id) + 1 AS end_id, MAX(s.last_id) + 1 - MIN(s.first_id) AS spanned,
               CAST(GREATEST(
                   IF(s.parent = 'events', GREATEST(2560000000, LEAST(u.used, 256000000000)), 1000000),
                   LEAST(COALESCE(MAX(r.peak_per_second), 0) * 604800, 1e15)) AS SIGNED) AS wanted
        FROM slices AS s
        JOIN slice_sources AS u ON u.parent = s.parent
        LEFT JOIN slice_rates AS r ON r.parent = s.parent
        GROUP BY s.parent, u.used
    ) AS w
    WHERE w.end_id - 1 - w.used < w.wanted
    ORDER BY w.parent;
END;
