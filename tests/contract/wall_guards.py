"""The guards of the walls on each dialect: what a mutant takes out of which function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import penstock
from penstock.subscriptions import stream
from tests.contract.tenants import THEIRS

#: Where a copy lies that nobody looks for.
PLACE = {"location": "l", "layout": 1, "first_row": 0}

#: Functions in which who may read could keep the log, if they did not ask for 'operate'.
READ_KEEPS = (
    *("seal", "begin_clean", "log_epochs_due", "record_reading", "clean", "record_copy"),
    *("forget_copy", "request_backfill", "release_rehydrated", "place_hold", "release_hold"),
    *("find_erasable", "begin_erasure", "count_log_epochs"),
)

#: On MySQL: lock_topic looks at the right before it locks.
LOCKED_FIRST = (
    "lock_topic",
    "AND (t.restricted OR @penstock_acting IS NOT NULL);",
    "AND FALSE;",
)
#: On MySQL: no query of rights leaves out the names of columns.
NAMELESS = (
    "login_has_right",
    "DECLARE given, held INT DEFAULT 0;",
    (
        "DECLARE given, held INT DEFAULT 0; SELECT COUNT(*) INTO given FROM namespace_grants;"
        " IF given = 0 THEN RETURN TRUE; END IF;"
    ),
)


def _fetch(own: Any) -> object:
    return penstock.fetch(own, THEIRS, 0, 1)


#: On PostgreSQL: a login may use what is not restricted.
_OPEN = "NOT t.restricted AND (SELECT as_login()) OR"
#: A guard: on each dialect the function, the text, what the mutant has there; and the attack that
#: then gets through.
MUTANTS: dict[str, tuple[dict[str, tuple[str, str, str]], Callable[[Any], object]]] = {
    "identity": (
        {
            "postgres": (
                "login_passes_walls",
                "pg_has_role(login_passes_walls.login, n.nspowner, 'MEMBER')",
                "pg_has_role(current_user, n.nspowner, 'MEMBER')",
            ),
            "mysql": (
                "login_passes_walls",
                "login = user_part(CURRENT_USER())",
                "user_part(CURRENT_USER()) = user_part(CURRENT_USER())",
            ),
        },
        _fetch,
    ),
    "membership": (
        {
            "postgres": (
                "login_has_right",
                "pg_has_role(login_has_right.login, to_regrole(quote_ident(g.login)), 'MEMBER')",
                "true",
            ),
            "mysql": ("login_has_right", "g.login = caller AND", ""),
        },
        _fetch,
    ),
    "lookup": (
        {
            "postgres": ("require_topic_for", _OPEN, "true OR"),
            "mysql": ("require_topic_for", "ELSEIF asked_in IS NOT NULL THEN", "ELSEIF FALSE THEN"),
        },
        _fetch,
    ),
    "lock": (
        {
            "postgres": ("lock_topic", _OPEN, "true OR"),
            "mysql": ("require_right", "IF NOT is_held THEN", "IF FALSE THEN"),
        },
        lambda own: stream.subscribe(own, "new", [THEIRS]),
    ),
    "namespace": (
        {
            "postgres": ("require_namespace", "AND has_right(n.id, verb)", ""),
            "mysql": (
                "require_namespace",
                "IF namespace_id IS NULL OR NOT is_held THEN",
                "IF namespace_id IS NULL THEN",
            ),
        },
        lambda own: penstock.create_topic(own, "theirs/x"),
    ),
    "subscription": (
        {
            "postgres": ("require_subscription", "AND reads_hidden(found_row.id)", "AND false"),
            "mysql": ("look_at_subscription", "IF is_hidden THEN", "IF FALSE THEN"),
        },
        lambda own: stream.unsubscribe(own, "theirs"),
    ),
    "restricted": (
        {
            "postgres": (
                "refresh_restricted",
                "UPDATE topics AS t SET restricted = n.restricted",
                "UPDATE topics AS t SET restricted = false",
            ),
            "mysql": ("refresh_restricted", "SET t.restricted = is_restricted", "SET t.id = t.id"),
        },
        _fetch,
    ),
    "created": (
        {
            "postgres": ("make_topic", "is_restricted(parent)", "false"),
            "mysql": ("make_topic", "strategy, is_restricted)", "strategy, FALSE)"),
        },
        lambda own: penstock.fetch(own, "theirs/later", 0, 1),
    ),
}
