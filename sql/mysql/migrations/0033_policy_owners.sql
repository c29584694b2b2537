-- name: drop_let_origins_name_the_file
-- What an installation that broke off has left.
DROP PROCEDURE IF EXISTS let_origins_name_the_file;

-- name: create_let_origins_name_the_file
-- A policy is owned by the file that has set it, so its origin says which: 'file ' and its name. The functions check
-- it. What is there already is passed over.
CREATE PROCEDURE let_origins_name_the_file()
BEGIN
    IF EXISTS (
        SELECT * FROM information_schema.TABLE_CONSTRAINTS AS c
        WHERE c.CONSTRAINT_SCHEMA = DATABASE() AND c.TABLE_NAME = 'policies'
          AND c.CONSTRAINT_NAME = 'policies_origin') THEN
        ALTER TABLE policies DROP /*!80000 CHECK */ /*M! CONSTRAINT */ policies_origin;
    END IF;
    IF EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'retention_policies' AND c.COLUMN_NAME = 'origin'
          AND c.CHARACTER_MAXIMUM_LENGTH = 20) THEN
        ALTER TABLE policies MODIFY COLUMN origin VARCHAR(600) NOT NULL;
        ALTER TABLE policy_versions MODIFY COLUMN origin VARCHAR(600) NOT NULL;
        ALTER TABLE retention_policies MODIFY COLUMN origin VARCHAR(600) NOT NULL DEFAULT 'hand';
    END IF;
END;

-- name: let_origins_name_the_file
-- Waits for whoever uses the tables, a second at a time.
CALL let_origins_name_the_file();

-- name: forget_let_origins_name_the_file
-- It was for this migration.
DROP PROCEDURE let_origins_name_the_file;
