-- name: settings
-- What can be set for the whole log; a name without a row has its default.
CREATE TABLE IF NOT EXISTS settings (
    name VARCHAR(100) NOT NULL PRIMARY KEY,
    value DOUBLE NOT NULL,
    updated_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_by VARCHAR(300) NOT NULL
) ENGINE = InnoDB;

-- name: numbers
-- 0 to 65,535, for statements that need a row for each place of something.
CREATE TABLE IF NOT EXISTS numbers (
    n INT NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

-- name: first_rows_of_numbers
-- Four digits to the base of 16.
INSERT IGNORE INTO numbers (n)
WITH digits (d) AS (
    SELECT 0 UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5
    UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9 UNION ALL SELECT 10
    UNION ALL SELECT 11 UNION ALL SELECT 12 UNION ALL SELECT 13 UNION ALL SELECT 14 UNION ALL SELECT 15
)
SELECT a.d + 16 * b.d + 256 * c.d + 4096 * d.d
FROM digits AS a CROSS JOIN digits AS b CROSS JOIN digits AS c CROSS JOIN digits AS d;

-- name: places
-- (1, 0), (2, 0), (2, 1), (4, 0), ...: what takes a packed row apart joins the smallest power of two that is large
-- enough, so that no row is looked at in vain more than once.
CREATE TABLE IF NOT EXISTS places (
    size INT NOT NULL,
    n INT NOT NULL,
    PRIMARY KEY (size, n)
) ENGINE = InnoDB;

-- name: first_rows_of_places
-- Up to 1,024.
INSERT IGNORE INTO places (size, n)
SELECT 1 << power.n, place.n
FROM numbers AS power JOIN numbers AS place ON place.n < 1 << power.n
WHERE power.n <= 10 AND place.n < 1024;
