"""PostgreSQL's settings: which values are wrong for an event log, and how each is mended.

The values that an application's session gets are the ones that count, so they are read on a plain
connection.  The same setting can be set in five places.  The place of a wrong value decides which
command mends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.doctor.findings import Finding, Rule, Severity

#: A pass over a backlog, or a clean, needs more than this.
SHORTEST_TIMEOUT_MS = 10_000

_REFUSES_CHANGES = frozenset({"default_transaction_read_only"})
_RELOAD = "SELECT pg_reload_conf()"


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """One row of pg_settings."""

    name: str
    value: str
    unit: str | None
    source: str
    context: str


@dataclass(frozen=True, slots=True)
class Psql:
    """How psql reaches the database that is examined."""

    arguments: tuple[str, ...]
    database: str
    login: str

    def run(self, *statements: str, database: str | None = None) -> str:
        """The command that runs statements, in another database of the server if need be."""
        from penstock.doctor.findings import shell

        # Stop at an error: the statements after a failed one could do harm.
        stop = ("-v", "ON_ERROR_STOP=1") if len(statements) > 1 else ()
        place = ("-d", database or self.database, *stop)
        return shell("psql", *self.arguments, *place, *(w for s in statements for w in ("-c", s)))


def _is_off(value: str) -> bool:
    return value == "off"


def _is_short(value: str) -> bool:
    return 0 < int(value) < SHORTEST_TIMEOUT_MS


_CRASH = "a crash of the server's machine can destroy or lose what was committed"
_DIES = "long passes of the sequencer, check-ins and clean are cut off"
_VACUUM = "old row versions are never cleaned up, and the server will stop before ids run out"

RULES = {
    "fsync": Rule("fsync", Severity.ERROR, _is_off, _CRASH, "on"),
    "full_page_writes": Rule("full_page_writes", Severity.ERROR, _is_off, _CRASH, "on"),
    "synchronous_commit": Rule(
        "synchronous_commit",
        Severity.ERROR,
        _is_off,
        "committed events can be lost by a crash",
        "on",
    ),
    "default_transaction_read_only": Rule(
        "read_only",
        Severity.ERROR,
        lambda value: value == "on",
        "nothing can be published, sequenced or committed",
        "off",
    ),
    "default_transaction_isolation": Rule(
        "isolation",
        Severity.WARNING,
        lambda value: value != "read committed",
        "sequence, check_in and other functions refuse it (PS018)",
        "read committed",
    ),
    "statement_timeout": Rule("timeout", Severity.WARNING, _is_short, _DIES, "60s"),
    "transaction_timeout": Rule("timeout", Severity.WARNING, _is_short, _DIES, "60s"),
    "autovacuum": Rule("autovacuum", Severity.WARNING, _is_off, _VACUUM, "on"),
    "track_counts": Rule("autovacuum", Severity.WARNING, _is_off, _VACUUM, "on"),
}


def examine_settings(rows: list[tuple[Any, ...]], psql: Psql) -> Iterator[Finding]:
    """A finding for each wrong value."""
    for row in rows:
        setting = ServerSetting(*row)
        rule = RULES[setting.name]
        if not rule.is_wrong(setting.value):
            continue
        value = f"{setting.value}{f' {setting.unit}' if setting.unit else ''}"
        yield Finding(
            rule.check,
            rule.severity,
            f"{setting.name} is {value} ({setting.source}): {rule.consequence}",
            _mending(setting, rule.right, psql),
        )


def _mending(setting: ServerSetting, right: str, psql: Psql) -> str:
    """The command that changes a value in the place where it is set."""
    wanted = f"{setting.name} = '{right}'"
    login, database = quoted(psql.login), quoted(psql.database)
    places = {
        "database": f"ALTER DATABASE {database} SET {wanted}",
        "user": f"ALTER ROLE {login} SET {wanted}",
        "database user": f"ALTER ROLE {login} IN DATABASE {database} SET {wanted}",
        "global": f"ALTER ROLE ALL SET {wanted}",
    }
    # Otherwise the session would refuse its own change.
    first = ("SET default_transaction_read_only = off",) * (setting.name in _REFUSES_CHANGES)
    if setting.source in places:
        return psql.run(*first, places[setting.source])
    if setting.source == "client":
        return f"unset PGOPTIONS  # and take {setting.name} out of the address of the database"
    if setting.source != "command line":
        return psql.run(*first, f"ALTER SYSTEM SET {wanted}", _RELOAD)
    if setting.context in {"user", "superuser"}:
        # A value on the server's command line overrides its files; this overrides both.
        return psql.run(*first, places["database"])
    return (
        f"pg_ctl restart -o '-c {setting.name}={right}'  # the server's command line says otherwise"
    )


def quoted(name: str) -> str:
    """An SQL identifier."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def literal(text: str) -> str:
    """An SQL string."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
