"""Single faults with real processes, on every engine; each is in the mixed run, too."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import database, subscriptions
from tests import servers
from tests.contract.databases import ContractDatabase
from tests.contract.stream_guards import NO_LIMIT
from tests.contract.stream_kit import without
from tests.faults.servers import crashing_server
from tests.faults.world import SEED, World
from tests.kit.proof import proves

pytestmark = pytest.mark.timeout(300)

#: Between the commit call of its third batch and COMMIT.
STOP = "commit.before=stop@3"


@pytest.fixture
def world(db: ContractDatabase, tmp_path: Path) -> Iterator[World]:
    """Processes end with the test."""
    with World(db.url, tmp_path, heartbeat=0.6, lease=3) as made:
        yield made


def _begin(world: World, *subscriptions: str, keys: int = 13) -> None:
    world.subscriptions = subscriptions
    world.set_up()
    world.start("sequencer", "s1")
    world.start("publisher", "p1", "--seed", "5", "--keys", str(keys))


def _finish(world: World) -> None:
    assert world.terminate("p1") == 0
    world.drain()
    for name in list(world.running):
        assert world.terminate(name) == 0
    assert world.verdict() == []


def _expired(world: World) -> list[float]:
    """When leases have ended by time, as the database wrote it down."""
    change = '"change"' if world.engine == "postgres" else "`change`"
    query = f"SELECT h.at FROM penstock.lease_history AS h WHERE h.{change} = 'expired'"
    with closing(world.connect()) as own:
        return [at.timestamp() for (at,) in database.execute(own, query)]


@proves("F19, F21")
@pytest.mark.long
def test_wrong_clocks_and_a_slow_network_move_no_lease(world: World) -> None:
    """F19, F21. Guards: the database's clock; heartbeats on a connection of their own."""
    _begin(world, "exact", "least")
    for name, skew in (("exact", -3600), ("least", 3600)):
        options = ("--subscription", name, "--skew", str(skew))
        world.start("consumer", name, *options).proxy.delay = 0.1
    world.until(lambda: len(world.records("commit")) >= 10, "ten commits")
    for each in world.proxies.made:
        each.delay = 0.0
    _finish(world)
    assert _expired(world) == []


@proves("L2, L8")
@proves("F2")
@pytest.mark.long
def test_sigterm_hands_over_without_doing_anything_twice(world: World) -> None:
    """F2, L2, L8. Guard: what is in hand is finished and committed before the leases are left."""
    _begin(world, "least")
    for name, before in (("one", ""), ("two", "one"), ("three", "two")):
        world.start("consumer", name, "--subscription", "least", "--seconds", "0.002")
        world.until(partial(world.records, "handle", proc=name), f"{name} works")
        if before:
            assert world.terminate(before) == 0
    _finish(world)
    handled = Counter((each["partition"], each["sequence"]) for each in world.records("handle"))
    assert max(handled.values()) == 1
    assert _expired(world) == []


@proves("F20")
@pytest.mark.long
def test_who_is_cut_off_stops_before_others_begin(world: World) -> None:
    """F20, D7. Guard: the keeper's local share of the lease, by the monotonic clock.

    Only the connection that keeps the leases is silent: the other one would still work.
    """
    _begin(world, "least")
    options = ("--subscription", "least", "--batch", "1")
    victim = world.start("consumer", "victim", *options, "--seconds", "0.005")
    world.until(lambda: len(world.records("handle")) >= 10, "it works")
    world.start("consumer", "other", *options)
    world.until(lambda: world.records("check_in", proc="other"), "the other one is a member")
    victim.proxy.frozen_to_client = b"penstock keeper"
    world.until(lambda: _expired(world), "its leases are taken")
    begun = [each["d0"] for each in world.records("handle", proc="victim")]
    assert max(begun) < min(_expired(world))
    victim.proxy.frozen_to_client = None
    world.until(lambda: len(world.records("join", proc="victim")) >= 2, "it joins again")
    _finish(world)


def _paused_before_its_commit(world: World) -> None:
    """A consumer that is stopped between its commit call and COMMIT, and one that could go on."""
    world.partitions = 1
    _begin(world, "exact")
    world.start("consumer", "zombie", "--subscription", "exact", "--failpoint", STOP)
    world.until(world.running["zombie"].is_stopped, "it stops itself in a transaction")
    world.start("consumer", "other", "--subscription", "exact")


def _deadline(connection: Any, name: str) -> float | None:
    """When a consumer's lease ends, by the database; nothing once it was collected."""
    query = "SELECT c.deadline FROM penstock.consumers AS c WHERE c.id = %(name)s"
    rows = database.execute(connection, query, {"name": name})
    return rows[0][0].replace(tzinfo=UTC).timestamp() if rows else None


def _looked(world: World, since: float) -> list[float]:
    """When the other one's check-ins that began after a time returned."""
    found = world.records("check_in", proc="other")
    return [each["d"] for each in found if each["d0"] > since]


@proves("L1, D8", how="with processes, by the database's clock")
@pytest.mark.long
def test_who_is_paused_before_its_commit_is_replaced_by_the_next_check_in(world: World) -> None:
    """F3, L1, D8: the first check-in after the end of the lease takes over.

    Guard: the server's limit for transactions that hold a lease, which ends them before it.
    """
    _paused_before_its_commit(world)
    ends: list[float] = []
    with closing(world.connect()) as own:

        def is_collected() -> bool:
            present = _deadline(own, "zombie")
            ends.extend([present] if present is not None else [])
            return present is None

        world.until(is_collected, "its lease is taken")
    (taken_at,) = _expired(world)
    assert taken_at >= ends[-1]
    assert [each for each in _looked(world, ends[-1]) if each < taken_at] == []
    world.go_on("zombie")
    world.until(lambda: len(world.records("join", proc="zombie")) >= 2, "it joins again")
    _finish(world)


@proves("L1, D8", guard="time limits of the server")
@pytest.mark.long
def test_without_the_limit_the_next_check_ins_take_nothing(
    db: ContractDatabase, world: World
) -> None:
    """Mutant: the transaction stays open, and with it the lock on the lease."""
    without(db, NO_LIMIT)
    _paused_before_its_commit(world)
    with closing(world.connect()) as own:

        def have_looked() -> bool:
            ends = _deadline(own, "zombie")
            assert ends is not None, "it was collected"
            return len(_looked(world, ends)) >= 4

        world.until(have_looked, "four check-ins behind the end of the lease")
    assert _expired(world) == []


@proves("L3, L4", how="with processes")
@proves("F22")
@pytest.mark.long
def test_consumers_that_come_and_go_all_the_time(db: ContractDatabase, tmp_path: Path) -> None:
    """F22, L3, L4. Guards: fair shares; afterwards all is held, evenly, and nothing moves."""
    chance = random.Random(SEED)
    with World(db.url, tmp_path, partitions=64, heartbeat=1, lease=6) as world:
        _begin(world, "least", keys=2000)
        options = ("--subscription", "least", "--seconds", "0.02", "--batch", "10")
        for number in range(16):
            world.start("consumer", f"c{number}", *options)
        for _ in range(12):
            name = chance.choice([each for each in world.running if each.startswith("c")])
            world.kill(name) if chance.random() < 0.3 else world.terminate(name)
            world.start("consumer", name, *options)
        for name in [f"c{number}" for number in range(8)]:
            assert world.terminate(name) == 0
        with closing(world.connect()) as own:

            def held() -> Counter[str]:
                found = subscriptions.lag(own, "least")
                return Counter(each.holder for each in found if each.holder is not None)

            def is_even() -> bool:
                counts = held()
                return counts.total() == 64 and max(counts.values()) == min(counts.values()) == 8

            world.until(is_even, "64 partitions are shared by eight")
            before = _acquired(own)
            world.until(partial(_passed, len(world.records("check_in")), world), "check-ins")
            assert _acquired(own) == before
        _finish(world)


def _passed(before: int, world: World) -> bool:
    return len(world.records("check_in")) >= before + 24


def _acquired(connection: Any) -> int:
    query = "SELECT SUM(l.lease_epoch) FROM penstock.leases AS l"
    return int(database.execute(connection, query)[0][0])


@proves("L9")
@pytest.mark.long
@pytest.mark.parametrize("engine", servers.DATABASES)
def test_nobody_storms_a_database_that_is_away(engine: str, tmp_path: Path) -> None:
    """L9. Guard: pauses that double, with jitter; at most two attempts a second for a process."""
    if engine not in servers.chosen():
        pytest.skip(f"this run is about {', '.join(servers.chosen())}")
    with (
        crashing_server(engine, tmp_path / "server") as server,
        World(server.url, tmp_path / "history", target=server.address) as world,
    ):
        _begin(world, "exact", "least")
        workers = [world.start("consumer", n, "--subscription", n) for n in world.subscriptions]
        world.until(lambda: world.records("handle"), "work is done")
        server.crash()
        begun = time.monotonic()
        before = sum(len(each.proxy.attempts) for each in workers)
        world.until(lambda: time.monotonic() > begun + 8, "eight seconds pass")
        attempts = sum(len(each.proxy.attempts) for each in workers) - before
        server.restart()
        world.url = server.url
        assert 0 < attempts <= 2 * len(workers) * 8
        _finish(world)
