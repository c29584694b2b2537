"""Taking a guard out of a function of the database, to see that a test notices.

A test that passes says little until it was seen to fail.  ``without_guard`` makes the mutant in the
test's own database; the test then runs the same scenario and asserts that the violation shows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from psycopg import sql

if TYPE_CHECKING:
    import psycopg

SCHEMA = "penstock"


def definition(connection: psycopg.Connection[Any], function_name: str) -> str:
    """The CREATE statement of a function of Penstock."""
    row = connection.execute(
        "SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p WHERE p.pronamespace = %s::regnamespace"
        " AND p.proname = %s",
        (SCHEMA, function_name),
    ).fetchall()
    assert len(row) == 1, f"{len(row)} functions are called {function_name}"
    return str(row[0][0])


def without_guard(
    connection: psycopg.Connection[Any], function_name: str, old_text: str, new_text: str
) -> None:
    """Re-create a function with ``new_text`` where ``old_text`` stands; it has to stand there."""
    present = definition(connection, function_name)
    assert present.count(old_text) == 1, f"{function_name} holds {old_text!r} not exactly once"
    with connection.transaction():
        connection.execute(
            sql.SQL("SET LOCAL search_path TO {}, pg_temp").format(sql.Identifier(SCHEMA))
        )
        connection.execute(present.replace(old_text, new_text).encode())


def plan_of(
    connection: psycopg.Connection[Any],
    function_name: str,
    *,
    settings_of: str | None = None,
    run: bool = True,
    **arguments: Any,
) -> dict[str, Any]:
    """EXPLAIN ANALYZE, as JSON, of the one query inside a function, under the function's settings.

    Without ``run`` it is EXPLAIN alone.
    The parameters are unknown to the planner, as they are in the function.  A function without
    settings becomes a part of the query of another one, ``settings_of``.
    """
    row = connection.execute(
        "SELECT p.prosrc, c.proconfig, p.proargnames, p.proargtypes::oid[]::regtype[]::text[]"
        " FROM pg_proc AS p JOIN pg_proc AS c USING (pronamespace)"
        " WHERE p.pronamespace = %s::regnamespace AND p.proname = %s AND c.proname = %s",
        (SCHEMA, function_name, settings_of or function_name),
    ).fetchone()
    assert row is not None, f"there is no function {function_name}"
    body, settings, names, types = row
    names = names[: len(types)]
    body = query_of(body)
    for place, name in enumerate(names, 1):
        body = re.sub(rf"\b{function_name}\.{name}\b", f"${place}", body)
    with connection.transaction(force_rollback=True):
        for setting in settings or [f"search_path={SCHEMA}"]:
            name, _, value = setting.partition("=")
            connection.execute("SELECT set_config(%s, %s, true)", (name, value))
        connection.execute("SELECT set_config('plan_cache_mode', 'force_generic_plan', true)")
        connection.execute(f"PREPARE inner_query ({', '.join(types)}) AS {body}".encode())
        given = sql.SQL(", ").join(sql.Literal(arguments[name]) for name in names)
        plan = connection.execute(
            sql.SQL("EXPLAIN ({} FORMAT JSON) EXECUTE inner_query ({})").format(
                sql.SQL("ANALYZE, BUFFERS," if run else ""), given
            )
        ).fetchone()
        connection.execute("DEALLOCATE inner_query")
    assert plan is not None
    return dict(plan[0][0]["Plan"])


def query_of(body: str) -> str:
    """The one query of a body, in SQL or in PL/pgSQL, without where its result goes."""
    block = re.fullmatch(r"(?:\s*DECLARE\s.*?)?\s*BEGIN\s+(.*);\s*END;?\s*", body, re.DOTALL)
    if block is None:
        return body
    statement = re.sub(r";\s+RETURN .*$", "", block.group(1))
    statement = re.sub(r"(?<!INSERT) INTO [a-z_, ]+$", "", statement, flags=re.MULTILINE)
    statement = re.sub(r"^RETURN QUERY\s", "", statement)
    return re.sub(r"^RETURN\s", "SELECT ", statement)


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """A plan's nodes that were executed."""
    own = [plan] if plan.get("Actual Loops") else []
    return own + [each for child in plan.get("Plans", []) for each in nodes(child)]
