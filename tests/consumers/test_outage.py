"""The database is killed under a daemon and comes back: L9, and a small form of F6."""

from __future__ import annotations

import functools
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock import database, subscriptions
from penstock.database import migrate, pace as reconnect
from penstock.database.pace import Pace
from penstock.errors import DatabaseUnavailable, PenstockError
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import dead_letters, policies, stream
from penstock.topics import names
from resources.embedded import EmbeddedPostgres
from tests import servers
from tests.consumers.conftest import StartDaemon
from tests.consumers.process import SOON_PENSTOCK, Daemon, until
from tests.faults.proxy import HOST, Proxies
from tests.kit.proof import proves
from tests.support import FAST_SETTINGS, missing
from tools.servers import FAST, MARIADB, MYSQL, Distribution, MySQLServer

TOPIC = "shop/orders"
PARTITIONS = 4
SUBSCRIPTIONS = [f"s{number}" for number in range(3)]
#: Attempts of a daemon that has the rate before the database is back.
ENOUGH = 5
RATE = 2.0
#: A port at which nobody listens.
NOBODY = 1


@dataclass(frozen=True)
class Victim:
    """A server of an engine that can be killed and started."""

    url: Callable[[], str]
    port: Callable[[], int | None]
    kill: Callable[[], None]
    start: Callable[[], Any]


@contextmanager
def postgres(folder: Path) -> Iterator[Victim]:
    """The embedded one."""
    with EmbeddedPostgres(folder, settings=FAST_SETTINGS) as server:

        def kill() -> None:
            pid = server.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the server")

        yield Victim(lambda: server.url("app"), lambda: server.port, kill, server.start)


@contextmanager
def mysql_family(distribution: Distribution, folder: Path) -> Iterator[Victim]:
    """MySQL or MariaDB."""
    # A commit is with the kernel before it is answered: the server's death loses nothing.
    settings = {**FAST, "innodb_flush_log_at_trx_commit": "2"}
    server = MySQLServer(folder, distribution, settings=settings)
    try:
        server.start()
    except PenstockError as error:
        missing(distribution.title, error)
    try:
        yield Victim(lambda: server.url("app"), lambda: server.port, server.kill, server.start)
    finally:
        server.stop()


ENGINES: dict[str, Callable[[Path], AbstractContextManager[Victim]]] = {
    "postgres": postgres,
    "mysql": functools.partial(mysql_family, MYSQL),
    "mariadb": functools.partial(mysql_family, MARIADB),
}
LONG = [pytest.param(each, marks=pytest.mark.long) for each in ("mysql", "mariadb")]


@pytest.fixture(params=["postgres", *LONG])
def victim(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Victim]:
    """A server with a topic that some subscriptions read."""
    if request.param not in servers.chosen():
        pytest.skip(f"this run is about {', '.join(servers.chosen())}")
    with ENGINES[request.param](tmp_path / "server") as started:
        migrate.migrate(started.url())
        with database.connect(started.url()) as connection:
            names.create_topic(connection, TOPIC, PARTITIONS, create_namespaces=True)
            for name in SUBSCRIPTIONS:
                stream.subscribe(connection, name, [TOPIC])
        yield started


def publish(victim: Victim, first: int, count: int) -> None:
    """Numbered events, committed."""
    messages = [
        Message(TOPIC, str(number).encode(), partition=number % PARTITIONS)
        for number in range(first, first + count)
    ]
    with database.connect(victim.url()) as connection:
        publish_batch(connection, messages)


def committed(victim: Victim) -> list[int]:
    """How far each subscription has come."""
    with database.connect(victim.url()) as connection:
        lags = subscriptions.lag(connection)
    return [
        sum(each.position for each in lags if each.subscription == name) for name in SUBSCRIPTIONS
    ]


def run(daemons: StartDaemon, url: str, rate: float) -> Daemon:
    """A daemon of six workers."""
    handlers = [f"--consumer={name}=tests.consumers.handlers:record" for name in SUBSCRIPTIONS]
    roles = ("--roles", "sequencer,sweep,consumers", "--reconnects-per-second", str(rate))
    return daemons(url, *roles, *handlers, soon=True).wait_started()


def at_the_rate(attempts: list[float]) -> bool:
    """Whether at no moment more had been made than the rate allows, and one more."""
    return all(
        number <= RATE * (at - attempts[0]) + 1 + 0.1 for number, at in enumerate(attempts, 1)
    )


@proves("L9 of a daemon")
@proves("F6", how="the daemon")
def test_a_database_that_is_killed_and_comes_back(victim: Victim, daemons: StartDaemon) -> None:
    """Guard: the pace of the process; beside it a daemon that has (almost) none."""
    with Proxies() as proxies:
        paced_way, hasty_way = (
            proxies.open(lambda: (HOST, victim.port() or NOBODY)) for _ in range(2)
        )
        paced = run(daemons, paced_way.url(victim.url()), RATE)
        hasty = run(daemons, hasty_way.url(victim.url()), 1000)
        publish(victim, 0, 40)
        until(lambda: committed(victim) == [40] * len(SUBSCRIPTIONS), "the first events")
        paced.wait_past_start()
        hasty.wait_past_start()
        before = len(paced_way.attempts), len(hasty_way.attempts)
        publish(victim, 40, 40)
        victim.kill()
        until(lambda: len(paced_way.attempts) - before[0] >= ENOUGH, "attempts in vain")
        until(lambda: paced.get("/readyz")[0] == 503, "the daemon to be not ready")
        assert paced.get("/livez")[0] == 200
        until(lambda: paced.says("/metrics", 200, "penstock_database_up 0.0"), "the metric")
        victim.start()
        publish(victim, 80, 40)
        until(lambda: committed(victim) == [120] * len(SUBSCRIPTIONS), "all events")
        until(lambda: paced.get("/readyz")[0] == 200, "the daemon to be ready again")

        seen = [line.split()[2] for each in (paced, hasty) for line in each.handled()]
        counts = {payload: seen.count(payload) for payload in seen}
        assert set(counts) == {str(number) for number in range(120)}
        assert min(counts.values()) >= len(SUBSCRIPTIONS)
        assert at_the_rate(paced_way.attempts[before[0] :])
        assert not at_the_rate(hasty_way.attempts[before[1] :])
        for each in (paced, hasty):
            each.terminate()
        assert (paced.exit_code(), hasty.exit_code()) == (0, 0)


@proves("readyz")
@pytest.mark.long
def test_the_upkeep_goes_on_when_the_database_is_back(victim: Victim, tmp_path: Path) -> None:
    """It says so in its log, and its pages say how it is meanwhile."""
    with Proxies() as proxies:
        way = proxies.open(lambda: (HOST, victim.port() or NOBODY))
        program = Daemon(
            way.url(victim.url()), tmp_path / "upkeep", ("--sweep-seconds", "0.2"),
            program=(*SOON_PENSTOCK, "upkeep"),
        )  # fmt: skip
        try:
            program.wait_started()
            publish(victim, 0, 40)
            until(lambda: unsequenced(victim) == 0, "the first events")
            program.wait_past_start()
            victim.kill()
            until(lambda: program.get("/readyz")[0] == 503, "it is not ready")
            assert program.get("/livez")[0] == 200
            until(lambda: program.says("/metrics", 200, "penstock_database_up 0.0"), "the metric")
            victim.start()
            publish(victim, 40, 40)
            until(lambda: unsequenced(victim) == 0, "the events after the outage")
            until(lambda: program.get("/readyz") == (200, "ok\n"), "it is ready again")
            said = {line["event"] for line in program.events()}
            assert "sequencer is connected again" in said
            assert "the database can be used again" in said
            program.terminate()
            assert program.exit_code() == 0
        finally:
            program.kill()


def unsequenced(victim: Victim) -> int:
    """How many events wait."""
    with database.connect(victim.url()) as connection:
        return int(database.call(connection, "unsequenced")[0][0])


@proves("no connection left", how="a daemon whose sessions end then")
@pytest.mark.long
def test_no_connection_is_left_for_a_while(victim: Victim, daemons: StartDaemon) -> None:
    """Others have them all when the daemon's own sessions end; nothing is lost, nothing is dead."""
    url = victim.url()
    daemon = run(daemons, url, 50)
    publish(victim, 0, 40)
    until(lambda: committed(victim) == [40] * len(SUBSCRIPTIONS), "the first events")
    daemon.wait_past_start()
    with database.connect(url) as own, ExitStack() as stack:
        for name in SUBSCRIPTIONS:
            settings = {"max_attempts": 1}
            policies.set_policy(own, "retry", settings, scope="subscription", name=name)
        publish_batch(own, [Message(TOPIC, b"40", partition=0)])
        others = set(_sessions(own))
        _take_all(url, stack)
        for session in others:
            _end_session(own, session)
        _take_all(url, stack)
        until(lambda: "cannot connect" in daemon.text(), "attempts in vain")
        with pytest.raises(DatabaseUnavailable, match="onnections"):
            database.connect(url)
    until(lambda: committed(victim) == [41] * len(SUBSCRIPTIONS), "all events")
    with database.connect(url) as own:
        for name in SUBSCRIPTIONS:
            assert dead_letters.dead_letters(own, name) == []
    daemon.terminate()
    assert daemon.exit_code() == 0, daemon.text()
    seen = {line.split()[2] for line in daemon.handled()}
    assert seen == {str(number) for number in range(41)}


def _sessions(own: Any) -> list[int]:
    """All sessions but the own one, and the server's."""
    sql = {
        "postgres": "SELECT pid FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        "mysql": "SELECT ID FROM information_schema.PROCESSLIST"
        " WHERE ID <> CONNECTION_ID() AND USER <> 'system user'",
    }
    return [row[0] for row in database.execute(own, sql[database.dialect_of(own)])]


def _end_session(own: Any, session: int) -> None:
    with suppress(Exception):  # it is gone
        end = {"postgres": f"SELECT pg_terminate_backend({session})", "mysql": f"KILL {session}"}
        database.execute(own, end[database.dialect_of(own)])


def _take_all(url: str, stack: ExitStack) -> None:
    """Until the server takes no more: often enough, that the daemon gets none in between."""
    refused = 0
    while refused < 5:
        try:
            stack.enter_context(closing(database.connect(url)))
        except DatabaseUnavailable:
            refused += 1


@proves("L9 of a daemon")
def test_never_more_than_the_rate_in_any_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of our own, which the callers' waits move."""
    now = [0.0]
    pace = Pace(RATE, clock=lambda: now[0])
    turns = [pace.pause() for _ in range(50)]  # all at once
    now[0] = 100.0
    turns += [100.0 + pace.pause() for _ in range(3)]  # after a rest: no more than before
    for turn in turns:
        assert len([each for each in turns if turn <= each < turn + 1]) <= RATE
    spaces = {round(b - a, 3) for a, b in itertools.pairwise(turns)}
    assert len(spaces) > 40, "the spaces have a random part"


def test_a_start_and_a_drain_do_not_wait() -> None:
    """Guard: the grace of the start; the end of the pace."""
    now = [0.0]
    pace = Pace(0.001, grace_seconds=5.0, clock=lambda: now[0])
    assert [pace.pause() for _ in range(20)] == [0.0] * 20
    now[0] = 6.0
    assert pace.pause() == 0.0
    assert pace.pause() >= 1000
    pace.end()
    with pace.attempt():
        pass
    assert pace.opened == 1


def test_only_who_asks_for_it_has_a_pace() -> None:
    assert reconnect.present() is None
    with reconnect.turn():
        pass


def test_attempts_are_counted(monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    monkeypatch.setattr(reconnect, "_paces", [])
    pace = Pace(1000.0)
    reconnect.limit(pace)
    database.connect(database_url).close()
    with pytest.raises(PenstockError, match="cannot connect"):
        database.connect("postgresql://me@127.0.0.1:1/app")
    assert (pace.opened, pace.failures) == (1, 1)
