-- name: create_namespace_grants
-- Who may do what in a namespace and below it. A namespace is restricted as soon as one row names it or one above it; login is
-- the name of a role, which need not be there any more: then the row still keeps the others out.
CREATE TABLE namespace_grants (
    namespace_id bigint NOT NULL,
    login text COLLATE "C" NOT NULL,
    verb text NOT NULL CHECK (verb IN ('publish', 'consume', 'operate', 'read')),
    granted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    granted_by text NOT NULL DEFAULT session_user,
    PRIMARY KEY (namespace_id, login, verb)
);
