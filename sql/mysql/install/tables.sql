-- name: installed_roles
-- The roles that were made for this schema. A role of such a name that does not stand here is a stranger's: it passes
-- no wall, and gets nothing when procedures are made anew.
CREATE TABLE IF NOT EXISTS installed_roles (
    kind VARCHAR(20) NOT NULL PRIMARY KEY,
    name VARCHAR(80) NOT NULL,
    installed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    installed_by VARCHAR(400) NOT NULL
) ENGINE = InnoDB;

-- name: role_edges
-- Who is in which role, on MariaDB, as refresh_roles has seen it last. MySQL is asked itself each time; MariaDB has it
-- in a table whose engine knows no savepoints, and no transaction that has read it could set one any more.
CREATE TABLE IF NOT EXISTS role_edges (
    member VARCHAR(128) NOT NULL,
    is_role BOOLEAN NOT NULL,
    role VARCHAR(128) NOT NULL,
    PRIMARY KEY (member, is_role, role)
) ENGINE = InnoDB;
