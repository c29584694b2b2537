"""The doctor on MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from penstock import database
from penstock.database import call
from penstock.database.mysql.opening import is_mariadb
from penstock.doctor.findings import Finding, Limits, behind, duration, error, more, warning
from penstock.doctor.letters import examine_letters
from penstock.doctor.mysql_settings import Client, examine_settings
from penstock.doctor.queues import examine_queues
from penstock.doctor.removals import examine_removals
from penstock.doctor.restores import examine_restores
from penstock.doctor.retention import examine_byte_limits, examine_skips
from penstock.doctor.schema import examine_schema
from penstock.driver_errors import errno_of
from penstock.errors import DatabaseTooOld, NotMigrated
from penstock.log import status as log_status
from penstock.log.sequencer_state import longest_locks, second_look

#: Events get their ids in blocks: an event that is published alone uses up a whole block.
IDS_IN_A_BLOCK = 256
FEW_BLOCKS = 1_000_000
FEW_IDS = 100_000

#: Rights that the login lacks: to see transactions, to see prepared ones.
_DENIED = frozenset({1227, 1401, 1045})


@dataclass(frozen=True, slots=True)
class _MySQLServer:
    connection: Any
    limits: Limits
    client: Client
    login: str


def examine(url: str, limits: Limits) -> list[Finding]:
    """Everything that is wrong there."""
    try:
        connection: Any = database.connect(url, application_name="penstock doctor")
    except DatabaseTooOld as problem:
        return [error("server", problem.message, problem.hint)]
    with closing(connection):
        login, version = call(connection, "doctor_endpoint")[0]
        place = ("-h", str(connection.host), "-P", str(connection.port))
        user = connection.user.decode() if isinstance(connection.user, bytes) else connection.user
        client = Client((*place, "-u", user), is_mariadb(version))
        server = _MySQLServer(connection, limits, client, login)
        found = list(examine_settings(dict(call(connection, "doctor_settings")), client))
        found += _snapshots(server)
        schema = examine_schema(connection)
        try:
            found += _sequencer(server)
        except NotMigrated:
            return found + schema
        found += _storage(server)
        found += examine_restores(connection)
        with suppress(NotMigrated):  # the functions of an older version
            found += examine_letters(connection)
            found += examine_skips(connection)
            found += examine_byte_limits(connection)
            found += examine_queues(connection, limits)
            found += examine_removals(connection, limits)
        return found + schema


@dataclass(frozen=True, slots=True)
class _MySQLHolder:
    kind: str
    name: int
    database: str | None
    login: str | None
    host: str | None
    age_seconds: int
    doing: str


def _snapshots(server: _MySQLServer) -> Iterator[Finding]:
    """The oldest of each kind."""
    try:
        rows = call(server.connection, "doctor_snapshots")
    except Exception as problem:
        if errno_of(problem) not in _DENIED:
            raise
        yield _hidden(server)
        return
    holders = [_MySQLHolder(*row) for row in rows]
    old = [each for each in holders if each.age_seconds > server.limits.snapshot_seconds]
    sessions = [each for each in old if each.kind == "session"]
    if sessions:
        yield _session(server, sessions[0], len(sessions) - 1)
    prepared = [each for each in old if each.kind == "prepared"]
    if prepared:
        yield _prepared(server, prepared[0], len(prepared) - 1)


def _hidden(server: _MySQLServer) -> Finding:
    user, _, host = server.login.rpartition("@")
    return warning(
        "hidden_sessions",
        "the login may not look at open transactions; one of them may hold the oldest snapshot",
        server.client.run(f"GRANT PROCESS ON *.* TO '{user}'@'{host}'"),
    )


_HELD = "the server keeps every version of a row since then, and scans get slower"


def _session(server: _MySQLServer, holder: _MySQLHolder, others: int) -> Finding:
    return warning(
        "snapshot",
        f"session {holder.name} of {holder.login} in {holder.database or 'no database'} (from "
        f"{holder.host}; {holder.doing}) has held its transaction for "
        f"{duration(holder.age_seconds)}{more(others)}: {_HELD}",
        server.client.run(f"KILL {holder.name}"),
    )


def _prepared(server: _MySQLServer, holder: _MySQLHolder, others: int) -> Finding:
    try:
        known = call(server.connection, "doctor_prepared")
    except Exception as problem:
        if errno_of(problem) not in _DENIED:
            raise
        known = []
    return warning(
        "prepared_transaction",
        f"a transaction was prepared {duration(holder.age_seconds)} ago and neither committed nor "
        f"rolled back{more(others)}: {_HELD}, and its events are not there",
        server.client.run(f"XA ROLLBACK {_xid(known[0])}" if known else "XA RECOVER CONVERT XID"),
    )


def _xid(row: tuple[Any, ...]) -> str:
    """The name of a prepared transaction, in hexadecimal, because it may contain any byte."""
    format_id, global_length, branch_length, data = row
    name = data if isinstance(data, bytes) else str(data).encode()
    first, second = name[:global_length], name[global_length : global_length + branch_length]
    return f"X'{first.hex()}', X'{second.hex()}', {format_id}"


def _sequencer(server: _MySQLServer) -> Iterator[Finding]:
    limit = server.limits.waiting_seconds
    status = second_look(
        lambda: log_status(server.connection),
        lambda status: status.unsequenced_age_seconds > limit,
    )
    if status.unsequenced_age_seconds <= limit:
        return
    waits = (
        f"{status.unsequenced_events} events or more wait for their sequence, the oldest for "
        f"{duration(status.unsequenced_age_seconds)}"
    )
    is_idle = (status.last_pass_age_seconds or 0) > limit
    holder = longest_locks(server.connection) if is_idle else None
    if holder is not None and holder.held_seconds > limit:
        # The server does not tell which rows a session has locked.
        held = duration(holder.held_seconds)
        waits += f"; {holder.session} has held locks for {held}, maybe the sequencer's"
    yield behind(waits, is_idle=is_idle)


def _storage(server: _MySQLServer) -> Iterator[Finding]:
    for parent, _, ready, days, _ in call(server.connection, "slices_ready"):
        few = FEW_BLOCKS * IDS_IN_A_BLOCK if parent == "events" else FEW_IDS
        if ready >= few and (days is None or days >= server.limits.storage_days):
            continue
        reach = "" if days is None else f", {days:.1f} days at the highest rate seen"
        left = (
            f"{max(ready, 0) // IDS_IN_A_BLOCK} more events that are published one by one"
            if parent == "events"
            else f"{ready} more ids"
        )
        yield error(
            "storage",
            f"the table {parent} is ready for only {left}{reach}",
            "penstock sequence  # makes partitions ahead, as penstock upkeep does all the time",
        )
