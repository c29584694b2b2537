"""Restores of MySQL and MariaDB with real servers: nothing lost, doubled or renumbered (S21, F7).

Two ways back: a dump into another server, and a copy of the data folder of a stopped one.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import database, log
from penstock.database.migrate import migrate
from penstock.errors import LogBehind, PenstockError
from penstock.log.histories import histories, reconcile, restore_status
from penstock.log.restores import report_position
from penstock.publishing import known_topics
from penstock.publishing.publish import publish_batch
from penstock.records import Lease, Message
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership
from tests.contract.databases import MySQLDatabase
from tests.doctor.mysql_client import client
from tests.kit.log import TOPIC, drain, part, texts, topic, wait_until
from tests.kit.proof import proves
from tests.servers import MySQLTestServer, chosen
from tests.support import missing
from tools.debian import DebianUnavailable, through_own_loader, unpack
from tools.servers import MARIADB, MYSQL, MySQLServer
from tools.servers.distribution import HOME
from tools.servers.process import give

DISTRIBUTIONS = {"mysql": MYSQL, "mariadb": MARIADB}
READER = "reader"

#: What readers got: history and sequence, and the payloads that they saw under the two.
Seen = dict[tuple[int, int], set[bytes]]


def _dump_program(engine: str) -> list[str]:
    """`mysqldump`, or `mariadb-dump`, which is not among the clients that other tests use."""
    program, package, suite, home = {
        "mysql": ("mysqldump", "mysql-client-core", "sid", "mysql-client"),
        "mariadb": ("mariadb-dump", "mariadb-client", "trixie", "mariadb-tools"),
    }[engine]
    try:
        root = unpack([package], suite, HOME / home)
    except (DebianUnavailable, OSError) as error:
        missing(program, error)
    return [*through_own_loader(root, f"usr/bin/{program}"), "--no-defaults"]


def _address(server: MySQLServer) -> list[str]:
    return ["--host=127.0.0.1", f"--port={server.port}", "--user=root"]


def _dump(engine: str, server: MySQLServer, file: Path, *options: str) -> None:
    command = [*_dump_program(engine), *_address(server), *options, "--databases", "penstock"]
    with file.open("wb") as output:
        subprocess.run(command, stdout=output, check=True, timeout=120)


def _load(engine: str, server: MySQLServer, file: Path) -> None:
    with file.open("rb") as given:
        subprocess.run([*client(engine), *_address(server)], stdin=given, check=True, timeout=120)


@contextmanager
def _running(engine: str, folder: Path) -> Iterator[MySQLServer]:
    if engine not in chosen():
        pytest.skip(f"this run is about {', '.join(chosen())}")
    server = MySQLServer(folder, DISTRIBUTIONS[engine])
    try:
        server.start()
    except PenstockError as error:
        missing(DISTRIBUTIONS[engine].title, error)
    known_topics.clear()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def _connected(server: MySQLServer) -> Iterator[Any]:
    with closing(database.connect(server.url("app"))) as connection:
        yield connection


def _copy(source: Path, target: Path) -> None:
    """As a volume's snapshot is restored."""
    shutil.copytree(
        source, target, ignore=shutil.ignore_patterns("server.json", "*.sock*", "*.pid")
    )
    give(target)


def _mark_is_old(connection: Any) -> bool:
    ((age,),) = database.execute(
        connection,
        "SELECT TIMESTAMPDIFF(SECOND, CREATE_TIME, NOW()) FROM information_schema.TABLES"
        " WHERE TABLE_SCHEMA = 'penstock' AND TABLE_NAME = 'log_mark'",
    )
    return int(age) >= 1


def _put(connection: Any, *payloads: str) -> None:
    publish_batch(connection, [Message(TOPIC, each.encode()) for each in payloads])


def _filled(connection: Any) -> tuple[Membership, Lease]:
    """Twenty sequenced events and a reader with a long lease who has read none."""
    topic(connection)
    stream.subscribe(connection, READER, [TOPIC])
    stream.configure_subscription(
        connection, READER, heartbeat_seconds=20, lease_seconds=600, release_seconds=10
    )
    _put(connection, *(f"old {number}" for number in range(20)))
    drain(connection)
    member = stream.join(connection, READER, "one")
    (lease,) = stream.check_in(connection, member)
    return member, lease


def _read_all(connection: Any, member: Membership, lease: Lease, seen: Seen) -> Lease:
    """Poll and commit until nothing is left."""
    while found := stream.poll(connection, member, [lease]):
        for event in found[0][1]:
            seen.setdefault((event.history, event.sequence), set()).add(event.payload)
        lease = _at(lease, found[0][1][-1].sequence)
        stream.commit(connection, member, [(lease, lease.position)])
    return lease


def _at(lease: Lease, position: int) -> Lease:
    return Lease(
        lease.topic,
        lease.partition,
        lease.partition_id,
        lease.lease_epoch,
        lease.state,
        position,
        lease.history,
    )


def _go_on(connection: Any, member: Membership, seen: Seen) -> int:
    """Other events than those of the lost time.  Returns where the reader stands at the end."""
    _put(connection, *(f"other {number}" for number in range(30)))
    drain(connection)
    (lease,) = stream.check_in(connection, member)
    assert lease.history == 2
    return _read_all(connection, member, lease, seen).position


def _judge(connection: Any, seen: Seen, expected: list[str]) -> None:
    assert texts(connection) == expected
    assert log.gaps(connection, TOPIC) == []
    assert [each.history for each in histories(connection)] == [1, 2]
    assert {place for place, payloads in seen.items() if len(payloads) > 1} == set()


OLD = [f"old {number}" for number in range(20)]
WAITING = [f"waiting {number}" for number in range(5)]
OTHER = [f"other {number}" for number in range(30)]


@pytest.mark.parametrize("engine", ["mysql", "mariadb"])
@pytest.mark.long
def test_a_dump_into_another_server(engine: str, tmp_path: Path) -> None:
    """Guards: enter_era, open_era; what waits in the dump comes once, what was lost is told."""
    file = tmp_path / "dump.sql"
    seen: Seen = {}
    with _running(engine, tmp_path / "old") as old:
        migrate(old.url("app"))
        with _connected(old) as connection:
            member, lease = _filled(connection)
            lease = _read_all(connection, member, lease, seen)
            _put(connection, *WAITING)
            _dump(engine, old, file, "--single-transaction", "--routines")
            _put(connection, *(f"lost {number}" for number in range(9)))
            drain(connection)
            assert _read_all(connection, member, lease, seen).position == 34
    with _running(engine, tmp_path / "new") as new:
        _load(engine, new, file)
        with _connected(new) as connection:
            with pytest.raises(LogBehind):
                stream.poll(connection, member, [_at(lease, 34)])
            assert _go_on(connection, member, seen) == 55
            _judge(connection, seen, [*OLD, *WAITING, *OTHER])
            assert (
                report_position(connection, part(connection), 34, history=1, source="x").history
                == 2
            )


@proves("F7")
@pytest.mark.parametrize("engine", [pytest.param("mysql", marks=pytest.mark.long), "mariadb"])
def test_a_copy_of_the_data_folder(engine: str, tmp_path: Path) -> None:
    """MySQL cannot tell it from inside: report_position stops, reconcile goes on.  MariaDB can."""
    seen: Seen = {}
    with _running(engine, tmp_path / "first") as server:
        migrate(server.url("app"))
        with _connected(server) as connection:
            member, lease = _filled(connection)
            lease = _read_all(connection, member, lease, seen)
            # MariaDB knows the time of a file by the second.
            wait_until(lambda: _mark_is_old(connection), "a copy is younger than what it copies")
    _copy(tmp_path / "first", tmp_path / "copy")
    with _running(engine, tmp_path / "first") as server, _connected(server) as connection:
        _put(connection, *(f"lost {number}" for number in range(9)))
        drain(connection)
        lease = _read_all(connection, member, lease, seen)
        assert lease.position == 29
        assert [each.history for each in histories(connection)] == [1]
    with _running(engine, tmp_path / "copy") as server, _connected(server) as connection:
        report = report_position(connection, part(connection), 29, history=1, source="sink")
        assert report.stopped
        with pytest.raises(LogBehind):
            stream.poll(connection, member, [lease])
        if engine == "mysql":
            drain(connection)
            assert [each.history for each in histories(connection)] == [1]
            (beyond,) = restore_status(connection)
            assert (beyond.sequence, beyond.source) == (29, "sink")
            assert reconcile(connection, "the folder of this morning") == 2
        assert _go_on(connection, member, seen) == 50
        assert restore_status(connection) == []
        _judge(connection, seen, [*OLD, *OTHER])


@pytest.mark.long
@pytest.mark.parametrize("engine", ["mysql", "mariadb"])
def test_a_dump_that_locks_nothing(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Tables of different moments, under load: each event that it holds is sequenced once."""
    server: MySQLTestServer = request.getfixturevalue(f"{engine}_server")
    shared: MySQLDatabase = request.getfixturevalue(f"installed_{engine}")
    shared.reset()
    if server.embedded is None:
        pytest.skip("the dump is of our own server")
    file = tmp_path / "dump.sql"
    stop = threading.Event()
    own = shared.connect()
    topic(own, 2)
    workers = [
        threading.Thread(target=_publish_until, args=(shared.connect(), stop)) for _ in range(3)
    ]
    workers.append(threading.Thread(target=_sequence_until, args=(shared.connect(), stop)))
    for each in workers:
        each.start()
    while not (found := log.fetch(own, TOPIC, 0, 2_000)):
        assert not stop.wait(0.05)
    assert found
    options = ["--skip-lock-tables", "--skip-add-locks", "--routines", "--no-tablespaces"]
    _dump(engine, server.embedded, file, *options)
    stop.set()
    for each in workers:
        each.join()
    with _running(engine, tmp_path / "new") as new:
        _load(engine, new, file)
        with _connected(new) as connection:
            drain(connection, 1_000)
            assert log.gaps(connection, TOPIC) == []
            ((events,),) = database.execute(connection, "SELECT COUNT(*) FROM penstock.events")
            sequenced = [text for part in (0, 1) for text in texts(connection, part)]
            assert len(set(sequenced)) == len(sequenced) == events
            _put(connection, "new")
            drain(connection)
            assert "new" in texts(connection) + texts(connection, 1)
    shared.close()


def _publish_until(connection: Any, stop: threading.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        own = threading.get_ident()
        _put(connection, *(f"{own} {number} {place}" for place in range(20)))


def _sequence_until(connection: Any, stop: threading.Event) -> None:
    while not stop.is_set():
        log.sequence(connection)
