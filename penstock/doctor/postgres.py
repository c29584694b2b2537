"""The doctor on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock import database
from penstock.database import call, config
from penstock.database.dialect import CONNECT_TIMEOUT_SECONDS
from penstock.database.postgres.connection import libpq_url
from penstock.doctor.findings import (
    Finding,
    Limits,
    behind,
    duration,
    error,
    more,
    shell,
    warning,
)
from penstock.doctor.letters import examine_letters
from penstock.doctor.postgres_refusals import primary_of, unless_refused, untold_identity
from penstock.doctor.postgres_settings import Psql, examine_settings, literal, quoted
from penstock.doctor.queues import examine_queues
from penstock.doctor.removals import examine_removals
from penstock.doctor.restores import examine_restores
from penstock.doctor.retention import examine_byte_limits, examine_skips
from penstock.doctor.schema import examine_schema
from penstock.errors import DatabaseTooOld, NotMigrated
from penstock.log.sequencer_state import second_look

if TYPE_CHECKING:
    from penstock.database import Connection

_POOLER_PROBES = 3
#: From this share on, a full queue of notices is a finding.
_MOST_NOTICES = 0.25


@dataclass(frozen=True, slots=True)
class _PostgresServer:
    """The connection, and what is known about its server."""

    connection: Connection
    limits: Limits
    psql: Psql
    schema: str


def examine(url: str, limits: Limits) -> list[Finding]:
    """Everything that is wrong there."""
    try:
        connection = database.connect(url, application_name="penstock doctor")
    except DatabaseTooOld as problem:
        return [error("server", problem.message, problem.hint)]
    with closing(connection), _plain(url) as plain:
        info = connection.info
        place = ("-h" * bool(info.host), info.host, "-p" * bool(info.port), str(info.port or ""))
        psql = Psql((*place, "-U", info.user), info.dbname, info.user)
        server = _PostgresServer(connection, limits, psql, config.schema_name())
        endpoint = _Endpoint(*call(connection, "doctor_endpoint")[0])
        found = list(examine_settings(call(plain, "doctor_settings"), psql))
        found += _pooler(server, plain, endpoint)
        if endpoint.in_recovery:
            return [*found, _replica(server)]
        schema = examine_schema(connection)
        with suppress(NotMigrated):
            for check in (
                _snapshots,
                _sequencer,
                _storage,
                _slices,
                _notices,
                _identity,
                _published,
            ):
                found += unless_refused(partial(check, server), psql)
            found += examine_restores(connection)
            found += examine_letters(connection)
            found += examine_skips(connection)
            found += examine_byte_limits(connection)
            found += examine_queues(connection, limits)
            found += examine_removals(connection, limits)
        return found + schema


@contextmanager
def _plain(url: str) -> Iterator[Any]:
    """A connection as an application makes one, without any setting of Penstock."""
    import psycopg

    with closing(
        psycopg.connect(libpq_url(url), autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS)
    ) as connection:
        yield connection


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """The server at the address."""

    in_recovery: bool
    server_host: str | None
    server_port: int | None
    login: str


def _replica(server: _PostgresServer) -> Finding:
    where = _address(server, *primary_of(server.connection))
    return error(
        "replica",
        "the address leads to a replica: it cannot publish, sequence or commit",
        where or "export PENSTOCK_DATABASE_URL=...  # the address of the primary",
    )


def _address(server: _PostgresServer, host: str | None, port: int | None) -> str | None:
    if not host or host.startswith("/"):
        return None
    name = f"[{host}]" if ":" in host else host
    url = f"postgresql://{server.psql.login}@{name}:{port}/{server.psql.database}"
    return f"export {shell(f'PENSTOCK_DATABASE_URL={url}')}  # with the password"


def _pooler(server: _PostgresServer, plain: Any, endpoint: _Endpoint) -> Iterator[Finding]:
    """Finds a pooler that gives a client another session after each transaction."""

    def answering(connection: Any) -> int:
        return int(call(connection, "doctor_backend")[0][0])

    mine = server.connection
    for _ in range(_POOLER_PROBES):
        first = answering(mine)
        with plain.transaction():
            other = answering(plain)
            again = answering(mine)
        if other == first or again != first:
            where = _address(server, endpoint.server_host, endpoint.server_port)
            yield warning(
                "pooler",
                "the address leads to a pooler that changes sessions between transactions: "
                "consumers are not woken and have to poll, time limits of sessions do not hold, "
                "and `penstock clean` and `penstock migrate` must not go through it",
                where or "export PENSTOCK_DATABASE_URL=...  # the address of the server itself",
            )
            return


def _snapshots(server: _PostgresServer) -> Iterator[Finding]:
    """The oldest of each kind."""
    told = {
        "session": _session,
        "prepared": _prepared,
        "slot": _slot,
        "hidden": _hidden,
    }
    counted: dict[str, list[_PostgresHolder]] = {kind: [] for kind in told}
    for row in call(server.connection, "doctor_snapshots"):
        holder = _PostgresHolder(*row)
        if holder.age_seconds is None or holder.age_seconds > holder.limit(server.limits):
            counted[holder.kind].append(holder)
    counted["prepared"].sort(key=lambda holder: holder.doing is None)
    for kind, holders in counted.items():
        if holders:
            yield told[kind](server, holders[0], len(holders) - 1)


@dataclass(frozen=True, slots=True)
class _PostgresHolder:
    """One row of snapshot_holders()."""

    kind: str
    name: str
    database: str | None
    login: str | None
    application: str | None
    age_seconds: float | None
    doing: str | None

    def limit(self, limits: Limits) -> float:
        """The allowed age.  It is shorter for a prepared transaction that holds a lease.

        Such a transaction stops its partition, which a session cannot do.
        """
        holds_a_lease = self.kind == "prepared" and self.doing is not None
        return limits.waiting_seconds if holds_a_lease else limits.snapshot_seconds


_HELD = "clean and vacuum cannot remove what is younger"


def _session(server: _PostgresServer, holder: _PostgresHolder, others: int) -> Finding:
    elsewhere = "" if holder.database == server.psql.database else f" in {holder.database}"
    return warning(
        "snapshot",
        f"session {holder.name} of {holder.login}{elsewhere} (application "
        f"{holder.application or 'unnamed'!r}; {holder.doing}) has held its transaction for "
        f"{duration(holder.age_seconds or 0)}{more(others)}: {_HELD}",
        server.psql.run(f"SELECT pg_terminate_backend({holder.name}, 10000)"),
    )


def _prepared(server: _PostgresServer, holder: _PostgresHolder, others: int) -> Finding:
    what = (
        f"transaction {holder.name!r} of {holder.login} in {holder.database} was prepared "
        f"{duration(holder.age_seconds or 0)} ago and neither committed nor rolled back"
        f"{more(others)}: {_HELD}, and its events are not there"
    )
    name = literal(holder.name)
    command = server.psql.run(f"ROLLBACK PREPARED {name}", database=holder.database)
    if holder.doing is None:
        return warning("prepared_transaction", what, command)
    return error(
        "prepared_transaction",
        f"{what}. It holds the lease of {holder.doing}: nobody else can read there until it ends "
        f"(COMMIT PREPARED {name}, if its coordinator has decided to commit)",
        command,
    )


def _slot(server: _PostgresServer, holder: _PostgresHolder, others: int) -> Finding:
    age = f" for {duration(holder.age_seconds)}" if holder.age_seconds is not None else ""
    return warning(
        "replication_slot",
        f"replication slot {holder.name!r} has had no reader{age}{more(others)}: it "
        f"{holder.doing or 'keeps WAL'} until the disk is full, and keeps old rows from vacuum",
        server.psql.run(f"SELECT pg_drop_replication_slot({literal(holder.name)})"),
    )


def _hidden(server: _PostgresServer, holder: _PostgresHolder, others: int) -> Finding:
    return warning(
        "hidden_sessions",
        f"{holder.name} sessions of other logins cannot be looked at; one of them may hold the "
        "oldest snapshot",
        server.psql.run(f"GRANT pg_read_all_stats TO {quoted(holder.login or '')}"),
    )


@dataclass(frozen=True, slots=True)
class _Sequencer:
    """The row of sequencer_state()."""

    events: int
    waiting_seconds: float
    last_pass_seconds: float | None
    pid: int | None
    login: str | None
    application: str | None
    held_seconds: float | None


def _notices(server: _PostgresServer) -> Iterator[Finding]:
    """PostgreSQL does not say which session fails to read them; its log names the oldest too."""
    for usage, *holder in call(server.connection, "doctor_notices", least=_MOST_NOTICES):
        pid, login, name, application, age = holder
        full = (
            f"the queue of notices is {usage:.0%} full: from half on Penstock wakes no consumers, "
            "and where it is full no transaction that notifies can commit"
        )
        if pid is None:
            what = "SELECT pid, usename, xact_start FROM pg_stat_activity ORDER BY xact_start"
            yield warning("notices", full, server.psql.run(what))
            continue
        yield warning(
            "notices",
            f"{full}; held by a session that does not read them, most likely session {pid} of "
            f"{login} in {name} (application {application or 'unnamed'!r}), in its transaction for "
            f"{duration(age)}",
            server.psql.run(f"SELECT pg_terminate_backend({pid}, 10000)"),
        )


def _sequencer(server: _PostgresServer) -> Iterator[Finding]:
    limit = server.limits.waiting_seconds
    state = second_look(
        lambda: _Sequencer(*call(server.connection, "doctor_sequencer")[0]),
        lambda state: state.waiting_seconds > limit,
    )
    if state.waiting_seconds <= limit:
        return
    many = f"{state.events}{' or more' if state.events == 10_000 else ''} events"  # noqa: PLR2004
    waits = f"{many} wait for their sequence, the oldest for {duration(state.waiting_seconds)}"
    if (state.held_seconds or 0) > limit:
        yield error(
            "sequencer",
            f"{waits}: session {state.pid} of {state.login} (application "
            f"{state.application or 'unnamed'!r}) holds the sequencer for "
            f"{duration(state.held_seconds or 0)}",
            server.psql.run(f"SELECT pg_terminate_backend({state.pid}, 10000)"),
        )
    else:
        idle = state.last_pass_seconds is None or state.last_pass_seconds > limit
        yield behind(waits, is_idle=idle)


def _identity(server: _PostgresServer) -> Iterator[Finding]:
    return untold_identity(server.connection, server.psql)


def _published(server: _PostgresServer) -> Iterator[Finding]:
    """Tables with updates and deletions that a publication makes the server refuse."""
    for publication, table, has_key in call(server.connection, "doctor_published"):
        mending = "DEFAULT" if has_key else "FULL"
        name = f"{quoted(server.schema)}.{quoted(table)}"
        yield error(
            "publication",
            f"the publication {publication!r} has the table {table}, which has no replica "
            "identity: the server refuses to change its rows",
            server.psql.run(f"ALTER TABLE {name} REPLICA IDENTITY {mending}"),
        )


def _storage(server: _PostgresServer) -> Iterator[Finding]:
    schema = quoted(server.schema)
    for parent, ready, days in call(
        server.connection, "doctor_storage", least_days=server.limits.storage_days
    ):
        if parent == "delayed":
            yield error(
                "storage",
                f"events that are delayed by the longest delay find no storage: it ends "
                f"{-days:.1f} days before",
                server.psql.run(f"SELECT {schema}.ensure_delayed()"),
            )
            continue
        reach = "" if days is None else f", {days:.1f} days at the highest rate seen"
        yield error(
            "storage",
            f"the table {parent} is ready for only {ready} more ids{reach}",
            server.psql.run(f"SELECT {schema}.ensure_slices()"),
        )


@dataclass(frozen=True, slots=True)
class _Slice:
    """One row of broken_slices()."""

    parent: str
    name: str
    first_id: int
    last_id: int
    state: str
    condemned: bool
    used: bool
    begun_seconds: float | None
    busy: bool

    def is_under_way(self, limits: Limits) -> bool:
        """Whether a session works on it or clean left it for now, and that is not long ago."""
        known = self.begun_seconds is not None
        young = known and (self.begun_seconds or 0) <= limits.snapshot_seconds
        left_for_now = self.condemned and self.state != "missing" and young
        return left_for_now or (self.busy and (young or not known))


def _slices(server: _PostgresServer) -> Iterator[Finding]:
    for row in call(server.connection, "doctor_slices"):
        slice_ = _Slice(*row)
        if slice_.is_under_way(server.limits):
            continue
        if slice_.condemned:
            yield _condemned(server, slice_)
        elif slice_.state == "missing" and slice_.used:
            yield error(
                "slice",
                f"the slice {slice_.name} is gone, and with it the rows {slice_.first_id} to "
                f"{slice_.last_id} of {slice_.parent}",
                f"pg_restore --table={slice_.name} ...  # from a backup, then once more: "
                "penstock doctor",
            )
        else:
            yield error(
                "slice",
                f"the slice {slice_.name} is {slice_.state}: the rows {slice_.first_id} to "
                f"{slice_.last_id} of {slice_.parent} can neither be read nor written",
                server.psql.run(*_attach(server.schema, slice_)),
            )


def _condemned(server: _PostgresServer, slice_: _Slice) -> Finding:
    age = f" for {duration(slice_.begun_seconds)}" if slice_.begun_seconds is not None else ""
    waits = (
        f" No other slice of {slice_.parent} can go before it. It waits for every transaction that "
        "is older; then the next `penstock clean` finishes it, or this, which waits for 20 s"
    )
    return warning(
        "slice",
        f"the slice {slice_.name} is {slice_.state}{age}: clean was interrupted while it "
        f"dropped it.{waits if slice_.state == 'half detached' else ''}",
        server.psql.run(*_drop(server.schema, slice_)),
    )


def _drop(schema: str, slice_: _Slice) -> Iterator[str]:
    """The remaining steps of clean."""
    parent, name = (f"{quoted(schema)}.{quoted(each)}" for each in (slice_.parent, slice_.name))
    if slice_.state == "half detached":
        yield "SET lock_timeout = '20s'"
        yield f"ALTER TABLE {parent} DETACH PARTITION {name} FINALIZE"
    if slice_.state != "missing":
        yield f"DROP TABLE {name}"
    yield f"SELECT {quoted(schema)}.slice_dropped({literal(slice_.name)})"


def _attach(schema: str, slice_: _Slice) -> Iterator[str]:
    parent, name = (f"{quoted(schema)}.{quoted(each)}" for each in (slice_.parent, slice_.name))
    if slice_.state == "half detached":
        yield f"ALTER TABLE {parent} DETACH PARTITION {name} FINALIZE"
    if slice_.state == "missing":
        yield (
            f"CREATE TABLE {name} "
            f"(LIKE {parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES)"
        )
        if slice_.parent == "chunks":
            index = quoted(f"{slice_.name}_sequence")
            yield f"CREATE UNIQUE INDEX {index} ON {name} (partition_id, first_sequence)"
    yield (
        f"ALTER TABLE {parent} ATTACH PARTITION {name} "
        f"FOR VALUES FROM ({slice_.first_id}) TO ({slice_.last_id + 1})"
    )
