-- name: create_namespace_grants
-- Who may do what in a namespace and below it. A namespace is restricted as soon as one row names it or one above it; login is
-- the name of a user, at whatever host, or of a role, and need not be there any more: then the row still keeps the others out.
CREATE TABLE IF NOT EXISTS namespace_grants (
    namespace_id BIGINT NOT NULL,
    login VARCHAR(255) NOT NULL,
    verb VARCHAR(20) NOT NULL,
    granted_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    granted_by VARCHAR(400) NOT NULL,
    PRIMARY KEY (namespace_id, login, verb),
    CONSTRAINT namespace_grants_verb CHECK (verb IN ('publish', 'consume', 'operate', 'read'))
) ENGINE = InnoDB;

-- name: create_installed_roles
-- The roles that were made for this schema. A role of such a name that does not stand here is a stranger's: it passes no wall,
-- and gets nothing when procedures are made anew.
CREATE TABLE IF NOT EXISTS installed_roles (
    kind VARCHAR(20) NOT NULL PRIMARY KEY,
    name VARCHAR(80) NOT NULL,
    installed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    installed_by VARCHAR(400) NOT NULL
) ENGINE = InnoDB;

-- name: create_role_edges
-- Who is in which role, on MariaDB, as refresh_roles has seen it last. MySQL is asked itself each time; MariaDB has it in a table
-- whose engine knows no savepoints, and no transaction that has read it could set one any more.
CREATE TABLE IF NOT EXISTS role_edges (
    member VARCHAR(128) NOT NULL,
    is_role BOOLEAN NOT NULL,
    role VARCHAR(128) NOT NULL,
    PRIMARY KEY (member, is_role, role)
) ENGINE = InnoDB;
