"""What a managed PostgreSQL server refuses: the log does without it, and the doctor says the price.

The functions that the server refuses are free to call everywhere else.  So the first finding of
each kind names the command that gives them back, for whoever may run it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.database import call
from penstock.doctor.findings import Finding, warning
from penstock.doctor.postgres_settings import Psql, quoted
from penstock.driver_errors import driver_error, sqlstate_of

_DENIED = "42501"
_OF_THE_SERVER = re.compile(r"permission denied for function (pg_\w+)")
_UNNOTICED = {
    "cluster": "the log does not notice by itself that its database was loaded into another "
    "server, unless the transaction numbers of that one are lower",
    "timeline": "the log does not notice by itself that a failover or a restore to an earlier time "
    "has lost commits, unless transaction numbers or counters show it",
}


def untold_identity(connection: Any, psql: Psql) -> Iterator[Finding]:
    """One finding: what is not noticed because the server does not say who it is."""
    rows = call(connection, "doctor_identity")
    if not rows:
        return
    functions = ", ".join(each for _, each, _ in rows)
    unnoticed = "; ".join(_UNNOTICED[what] for what, _, _ in rows)
    yield warning(
        "identity",
        f"the server refuses {functions} to the owner of the schema: {unnoticed}. After each of "
        "these run `penstock restore status`, and `penstock restore reconcile` if commits may be "
        "lost",
        psql.run(f"GRANT EXECUTE ON FUNCTION {functions} TO {quoted(rows[0][2])}"),
    )


def unless_refused(examine: Callable[[], Iterable[Finding]], psql: Psql) -> list[Finding]:
    """The findings; one that says so when the server refuses a function of its own."""
    try:
        return list(examine())
    except Exception as error:
        name = _refused(error)
        if name is None:
            raise
        return [
            warning(
                "refused",
                f"the server refuses {name}(): the doctor cannot look at everything",
                psql.run(f"GRANT EXECUTE ON FUNCTION pg_catalog.{name} TO PUBLIC"),
            )
        ]


def primary_of(connection: Any) -> tuple[str | None, int | None]:
    """Host and port from which a replica gets its data, as far as the server says so."""
    try:
        rows = call(connection, "doctor_primary")
    except Exception as error:
        if _refused(error) is None:
            raise
        rows = []
    return (rows[0][0], rows[0][1]) if rows else (None, None)


def _refused(error: Exception) -> str | None:
    """The server's own function that the login may not call; None for every other error."""
    found = _OF_THE_SERVER.search(str(driver_error(error)))
    return found[1] if found and sqlstate_of(error) == _DENIED else None
