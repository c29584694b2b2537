"""A fleet: one code location over databases of three engines, of which one can be down or frozen.

Each of them is reached by a proxy, so a test can take one away and leave the servers as they are.
"""

from __future__ import annotations

import logging
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import penstock
from dagster_project import catalogue, definitions, triggers
from penstock import database, log
from penstock.topics import names
from resources.database import engine
from tests.contract.conftest import installed_mariadb, installed_mysql
from tests.contract.databases import MySQLDatabase
from tests.dagster.conftest import House
from tests.faults.proxy import Address, Proxies, Proxy, address_of
from tests.kit.proof import proves

__all__ = ["installed_mariadb", "installed_mysql"]

#: The databases of the fleet, with the engine of each.
KINDS = {"orders": "postgres", "stock": "mysql", "billing": "mysql"}
DEAD, ALIVE = "stock", ("orders", "billing")
SENSORS = ("backlog", "seal", "sealed", "backfills")
GONE_SECONDS = 60

Fleet = Callable[[int], "House"]


@dataclass(eq=False)
class Member:
    """A database of the fleet: its own address, and the way by which Dagster reaches it."""

    name: str
    url: str
    proxy: Proxy
    up: bool = True

    def target(self) -> Address:
        """Where the proxy leads; nowhere while the database is down."""
        if not self.up:
            raise ConnectionRefusedError("the test has taken it away")
        return address_of(self.url)

    def publish(self, topics: int, events: int) -> None:
        """So many events to each topic, past the proxy, in one transaction."""
        messages = [
            penstock.Message(topic(number), b"%d" % n)
            for number in range(topics)
            for n in range(events)
        ]
        with database.connect(self.url) as own:
            penstock.publish_batch(own, messages)

    def events(self) -> int:
        """How many events have their sequence."""
        with database.connect(self.url) as own:
            found = (names.partition_ranges(own, each.address) for each in names.list_topics(own))
            return sum(part.high_watermark for ranges in found for part in ranges)

    def unsequenced(self) -> int:
        """How many wait for one."""
        with database.connect(self.url) as own:
            return log.status(own).unsequenced_events


@dataclass(eq=False)
class Ships:
    """The databases, and the house over all of them."""

    members: dict[str, Member]
    proxies: Proxies
    folder: Path
    instance: dg.DagsterInstance
    house: House

    def launch(self, topics: int) -> House:
        """So many topics of the same names in each, and the definitions of the whole fleet."""
        for member in self.members.values():
            with database.connect(member.url) as own:
                for number in range(topics):
                    penstock.create_topic(own, topic(number), 1, create_namespaces=True)
        (self.folder / "policies.yaml").write_text(policies(topics), encoding="utf-8")
        self.house.reload()
        return self.house

    def kill(self, name: str) -> None:
        """Nobody gets through to it any more, and what was connected is cut off."""
        self.members[name].up = False
        self.proxies.cut(self.members[name].proxy)

    def tick(self, name: str, sensor: str) -> tuple[dg.SensorExecutionData, float]:
        """One tick of a database's sensor, and how long it took."""
        begun = time.perf_counter()
        done = self.house.sense(f"{name}__{sensor}")
        return done, time.perf_counter() - begun

    def catch_up(self, name: str) -> None:
        """What its sensors ask for is run, until they ask for nothing."""
        for _ in range(3):
            for sensor in ("backlog", "seal"):
                self.house.asked(self.tick(name, sensor)[0])


def topic(number: int) -> str:
    """The name of a topic; the databases have the same ones."""
    return f"shop/t{number}"


def policies(topics: int) -> str:
    """A policy file that names the databases."""
    lines = ["targets: {local: archive}", "limits: {unsequenced: 0}", "databases:"]
    for name in KINDS:
        lines += [f"  {name}:", f"    url: ${{{name.upper()}_URL}}", "    topics:"]
        lines += [
            f"      {topic(number)}: {{seal: {{max_events: 5}}, archive: [local]}}"
            for number in range(topics)
        ]
    return "\n".join(lines)


@pytest.fixture
def ships(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    database_url: str,
    installed_mysql: MySQLDatabase,
    installed_mariadb: MySQLDatabase,
) -> Iterator[Ships]:
    """A PostgreSQL, a MySQL and a MariaDB; the environment itself names no database."""
    for each in ("PENSTOCK_DATABASE_URL", "PENSTOCK_EMBEDDED", "PENSTOCK_TOPICS", "DB_NAME"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("PENSTOCK_POLICIES", str(tmp_path / "policies.yaml"))
    for shared in (installed_mysql, installed_mariadb):
        shared.reset()
    urls = dict(zip(KINDS, (database_url, installed_mysql.url, installed_mariadb.url), strict=True))
    with Proxies() as proxies, dg.DagsterInstance.ephemeral() as instance:
        members: dict[str, Member] = {}
        for name, url in urls.items():
            proxy = proxies.open(lambda name=name: members[name].target())  # type: ignore[misc]
            members[name] = Member(name, url, proxy)
            monkeypatch.setenv(f"{name.upper()}_URL", proxy.url(url))
        nothing: Any = None
        house = House(tmp_path, "", nothing, instance, nothing)
        yield Ships(members, proxies, tmp_path, instance, house)
        for member in members.values():
            engine(member.proxy.url(member.url)).dispose()
    for shared in (installed_mysql, installed_mariadb):
        shared.close()


def test_each_database_has_its_assets_jobs_and_sensors_and_runs_its_duties(ships: Ships) -> None:
    """The topics have the same names in all of them, and none sees another's events."""
    house = ships.launch(2)
    dg.Definitions.validate_loadable(house.defs)
    graph = house.defs.resolve_asset_graph()
    jobs = {job.name for job in house.defs.resolve_all_job_defs()}
    for count, (name, kind) in enumerate(KINDS.items(), start=1):
        node = graph.get(dg.AssetKey(["penstock", name, "shop_t1", "t1_sequenced"]))
        assert (node.group_name, node.kinds) == (f"{name}/shop/t1", {kind})
        assert graph.get(dg.AssetKey(["penstock", name, "health"])).group_name == (
            f"{name}/operations"
        )
        assert {f"{name}__{job}" for job in ("sequence", "seal", "clean", "health")} - jobs <= {
            f"{name}__clean"  # nothing is removed here
        }
        ships.members[name].publish(2, 5 * count)
    for count, name in enumerate(KINDS, start=1):
        ships.catch_up(name)
        assert ships.members[name].events() == 10 * count
        (event,) = [
            each
            for each in ships.tick(name, "sealed")[0].asset_events
            if each.asset_key.path[1:] == [name, "shop_t0", "t0_archive"]
        ]
        assert event.metadata["verified"].value == f"0 of {count}"
        for job in ("policies", "sweep", "storage", "health"):
            house.done(f"{name}__{job}")


@proves("one database stops no other")
def test_a_database_that_is_down_stops_no_other_at_load_tick_and_check(
    ships: Ships, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards: catalogue._of_database, triggers.skip_while_down, a run of its own for each."""
    ships.launch(2)
    ships.kill(DEAD)
    caplog.set_level(logging.WARNING)
    begun = time.perf_counter()
    fleet = catalogue.read()
    assert time.perf_counter() - begun < 2 * catalogue.CONNECT_SECONDS + 5
    (said,) = [each.getMessage() for each in caplog.records if each.name == "penstock.dagster"]
    assert f"the topics of the database {DEAD} are not known" in said
    assert [len(each.existing) for each in fleet] == [2, 0, 2]
    assert [len(each.topics) for each in fleet] == [2, 2, 2]  # of the policy file
    ships.house.defs = definitions.build(fleet)
    for name in KINDS:
        ships.members[name].publish(1, 5)
        asked = [ships.tick(name, each)[0] for each in SENSORS]
        if name == DEAD:
            assert all("cannot connect to" in (each.skip_message or "") for each in asked)
            assert not ships.house.job(f"{name}__health").success
            continue
        ships.catch_up(name)
        assert ships.members[name].events() == 5
        ships.house.done(f"{name}__health")
    ships.members[DEAD].up = True
    ships.catch_up(DEAD)
    assert ships.members[DEAD].events() == 5


@proves("one database stops no other")
def test_a_database_that_is_frozen_holds_one_tick_and_no_other_database(
    ships: Ships, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next tick ends after a moment, and not in another thread that hangs.

    Guard: triggers.one_tick.
    """
    monkeypatch.setattr(triggers, "MOST_WAITING_SECONDS", 0.3)
    ships.launch(1)
    ships.members[DEAD].proxy.frozen_to_client = b""
    hanging = threading.Thread(target=lambda: ships.house.sense(f"{DEAD}__seal"), daemon=True)
    hanging.start()
    try:
        hanging.join(0.2)
        assert hanging.is_alive()
        for _ in range(2):
            done, seconds = ships.tick(DEAD, "backlog")
            assert "an earlier tick still waits" in (done.skip_message or "")
            assert seconds < 5
        for name in ALIVE:
            ships.members[name].publish(1, 5)
            ships.catch_up(name)
            assert ships.members[name].events() == 5
    finally:
        ships.members[DEAD].proxy.frozen_to_client = None
        hanging.join(30)
    assert not hanging.is_alive()
    ships.members[DEAD].publish(1, 5)
    ships.catch_up(DEAD)
    assert ships.members[DEAD].events() == 5


@proves("one database stops no other")
@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_hundred_topics_in_each_and_one_is_gone_for_a_minute(ships: Ships) -> None:
    """The ticks of the others take as long as before, while those of the one fail beside them.

    They are compared with ticks that have the same to do, before it and after it. The thread that
    ticks the one all the time takes turns with them, whether the one is there or not.
    """
    ships.launch(100)
    for name in KINDS:
        for sensor in SENSORS:
            ships.tick(name, sensor)
    with ticked_all_the_time(ships):
        before, during = [*worked(ships), *worked(ships)], list[float]()
    ships.kill(DEAD)
    gone = time.monotonic()
    with ticked_all_the_time(ships) as said:
        while time.monotonic() < gone + GONE_SECONDS:
            during += worked(ships)
    assert len(said) > GONE_SECONDS and all("cannot connect to" in each for each in said)
    waiting = ships.members[DEAD].unsequenced()
    assert waiting >= 100
    ships.members[DEAD].up = True
    begun = time.perf_counter()
    ships.catch_up(DEAD)
    caught_up = time.perf_counter() - begun
    assert ships.members[DEAD].unsequenced() == 0
    with ticked_all_the_time(ships):
        after = [*worked(ships), *worked(ships)]
    medians = [statistics.median(each) for each in (before, during, after)]
    sys.stdout.write(  # make test-long ARGS="-k hundred_topics -s" shows it
        f"ticks of the others: {medians[0]:.3f} s in the median before, {medians[1]:.3f} s while "
        f"one is gone, {medians[2]:.3f} s after it; {len(said)} ticks of the one said so; its "
        f"{waiting} events were sequenced within {caught_up:.1f} s of its return\n"
    )
    assert medians[1] < 2 * max(medians[0], medians[2]) + 0.05, medians


def worked(ships: Ships) -> list[float]:
    """A round of work on the databases that stay, and how long each of their ticks took then."""
    for member in ships.members.values():
        member.publish(100, 1)
    for name in ALIVE:
        ships.catch_up(name)
        assert ships.members[name].unsequenced() == 0
    return ticks_of(ships, 2)


@contextmanager
def ticked_all_the_time(ships: Ships) -> Iterator[list[str]]:
    """The sensors of one database in another thread, as Dagster's daemon does; their words.

    The daemon makes a tick of each in thirty seconds; this makes many.
    """
    said: list[str] = []
    over = threading.Event()

    def ticks() -> None:
        while not over.wait(0.1):
            said.extend(ships.tick(DEAD, each)[0].skip_message or "" for each in SENSORS)

    thread = threading.Thread(target=ticks)
    thread.start()
    try:
        yield said
    finally:
        over.set()
        thread.join()


def ticks_of(ships: Ships, rounds: int) -> list[float]:
    """How long the ticks of the databases that stay take."""
    return [
        ships.tick(name, sensor)[1] for _ in range(rounds) for name in ALIVE for sensor in SENSORS
    ]
