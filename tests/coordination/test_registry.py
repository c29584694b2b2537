"""The contract of registries: PXRS's sixteen tests and the invariants S9 to S11, on every store."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import (
    BackwardCommit,
    ConfigurationError,
    CoordinationUnavailable,
    DatabaseUnavailable,
    DuplicateSession,
    InvalidArgument,
    StaleLease,
    UnknownConsumer,
)
from penstock.leases.coordination import LeaseRegistry, open_registry
from tests.coordination.bench import GUARDS, Bench, InMemory, InStore, state
from tests.coordination.conftest import of_kind
from tests.kit.log import wait_until
from tests.kit.proof import proves


def test_partitions_begin_free(bench: Bench) -> None:
    with bench.open() as registry:
        assert [each.partition_id for each in registry.unowned()] == bench.partition_ids
        for each in registry.snapshot().partitions.values():
            assert (each.holder, each.live, each.lease_epoch, each.position) == (None, False, 0, 0)
        assert registry.initialize(dict.fromkeys(bench.partition_ids, 7)) == 0
        assert registry.position(bench.partition_ids[0]) == 0


def test_consumers_come_and_go(bench: Bench) -> None:
    registry, other = bench.open(), bench.open()
    registry.register("b", 2.5)
    registry.register("a")
    assert registry.active_consumers() == {"a": 1.0, "b": 2.5}
    for second in (registry, other):
        with pytest.raises(DuplicateSession):
            second.register("a")
    registry.deregister("b")
    registry.deregister("b")
    other.deregister("a")  # another process has never registered it
    assert other.active_consumers() == {"a": 1.0}


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 1001.0])
def test_a_weight_that_cannot_be_shared_by(weight: float) -> None:
    registry = InMemory().open()
    with pytest.raises(InvalidArgument, match="weight"):
        registry.register("a", weight)
    assert not registry.active_consumers()


def test_what_is_not_known(bench: Bench) -> None:
    registry = bench.open()
    first = bench.partition_ids[0]
    with pytest.raises(UnknownConsumer):
        registry.renew("nobody")
    with pytest.raises(UnknownConsumer):
        registry.claim(first, "nobody", 0)
    with pytest.raises(UnknownConsumer):
        registry.lead("nobody")
    with pytest.raises(StaleLease):
        registry.update_position(first, "nobody", 1, 0)
    assert registry.release(first, "nobody", 0) is False
    registry.register("a")
    with pytest.raises(InvalidArgument):
        registry.claim(999_999_999, "a", 0)
    with pytest.raises(InvalidArgument):
        registry.position(999_999_999)
    with pytest.raises(InvalidArgument):
        registry.update_position(first, "a", 10**18 + 1, 0)


def test_claim_read_and_give_back(bench: Bench) -> None:
    registry = bench.open()
    first, second, *_ = bench.partition_ids
    registry.register("a")
    held = registry.claim(first, "a", 0)
    assert held is not None
    assert (held.holder, held.live, held.lease_epoch, held.position) == ("a", True, 1, 0)
    assert state(registry, first) == held
    assert registry.owned_by("a") == [held]
    registry.update_position(first, "a", 7, held.lease_epoch)
    assert registry.position(first) == 7
    assert registry.release(first, "a", held.lease_epoch) is True
    assert registry.release(first, "a", held.lease_epoch) is False
    assert first in [each.partition_id for each in registry.unowned()]
    again = registry.claim(first, "a", 1)
    assert again is not None
    assert (again.lease_epoch, again.position) == (2, 7)
    assert registry.claim(second, "a", 0)
    assert registry.release_all("a") == 2
    assert registry.owned_by("a") == []


def test_leaving_frees_at_once(bench: Bench) -> None:
    registry = bench.open()
    registry.register("a")
    for each in bench.partition_ids:
        assert registry.claim(each, "a", 0)
    registry.deregister("a")
    assert len(registry.unowned()) == len(bench.partition_ids)
    assert registry.expired() == []


def test_of_those_who_claim_at_once_one_wins(bench: Bench) -> None:
    registries = [bench.open() for _ in range(4)]
    for number, registry in enumerate(registries):
        registry.register(f"c{number}")
    start = threading.Barrier(len(registries))

    def race(number: int) -> list[bool]:
        start.wait(30)
        claims = [registries[number].claim(p, f"c{number}", 0) for p in bench.partition_ids]
        return [each is not None for each in claims]

    with ThreadPoolExecutor(len(registries)) as pool:
        won = list(pool.map(race, range(len(registries))))
    assert [sum(column) for column in zip(*won, strict=True)] == [1] * len(bench.partition_ids)


def test_the_dead_hold_nothing(bench: Bench) -> None:
    ours, theirs = bench.open(), bench.open()
    first = bench.partition_ids[0]
    ours.register("a")
    assert ours.claim(first, "a", 0)
    bench.expire("a")
    assert [each.partition_id for each in theirs.expired()] == [first]
    assert theirs.active_consumers() == {}
    assert theirs.owned_by("a") == []
    with pytest.raises(UnknownConsumer):
        ours.renew("a")
    with pytest.raises(UnknownConsumer):
        ours.claim(bench.partition_ids[1], "a", 0)
    theirs.register("a")  # a new run of the same id holds nothing of the old one
    assert theirs.owned_by("a") == []
    taken = theirs.claim(first, "a", 1)
    assert taken is not None
    assert taken.lease_epoch == 2
    with pytest.raises(StaleLease):
        ours.update_position(first, "a", 1, 1)


def test_leaders_and_terms(bench: Bench) -> None:
    ours, theirs = bench.open(), bench.open()
    ours.register("a")
    theirs.register("b")
    plan = dict(zip(bench.partition_ids, "abababab", strict=True))
    assert ours.lead("a") == 1
    assert ours.lead("a") == 1
    assert theirs.lead("b") is None
    ours.assign("a", 1, plan)
    assert theirs.snapshot().assignment.holders == plan
    bench.expire("a")
    assert theirs.lead("b") == 2
    with pytest.raises(StaleLease):
        ours.assign("a", 1, {})
    theirs.assign("b", 2, plan)
    assert ours.snapshot().assignment.term == 2
    theirs.deregister("b")
    ours.register("c")
    assert ours.lead("c") == 3


@pytest.mark.parametrize("kind", ["etcd", "redis"])
def test_the_store_ends_what_is_not_renewed(kind: str, request: pytest.FixtureRequest) -> None:
    """By its own clock.  What renewals are good for shows too: a has registered before b."""
    for bench in of_kind(kind, request):
        assert isinstance(bench, InStore)
        bench.lease_seconds = 1.0
        registry = bench.open()
        registry.register("a")
        registry.register("b")
        assert registry.claim(bench.partition_ids[0], "b", 0)

        def b_is_gone(registry: LeaseRegistry = registry) -> bool:
            registry.renew("a")
            return bool(registry.expired())

        wait_until(b_is_gone, "the lease of b ends")
        assert registry.active_consumers() == {"a": 1.0}


@pytest.mark.parametrize("kind", ["etcd", "redis"])
def test_two_databases_share_a_store(kind: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    with (
        open_registry(url, "shared", prefix="one") as one,
        open_registry(url, "shared", prefix="other") as other,
        open_registry(url, "share", prefix="one") as beside,
    ):
        one.initialize({1: 7})
        for each in (other, beside):
            assert not each.snapshot().partitions


# What follows is written so that it can be run on a mutant: each returns whether the guard held.


def taken_from_the_living(bench: Bench, ours: LeaseRegistry, theirs: LeaseRegistry) -> bool:
    first = bench.partition_ids[0]
    ours.register("a")
    theirs.register("b")
    assert ours.claim(first, "a", 0)
    return theirs.claim(first, "b", 1) is not None


def claimed_after_an_old_look(bench: Bench, ours: LeaseRegistry, theirs: LeaseRegistry) -> bool:
    first = bench.partition_ids[0]
    ours.register("a")
    theirs.register("b")
    seen = state(theirs, first).lease_epoch
    held = ours.claim(first, "a", 0)
    assert held is not None
    ours.release(first, "a", held.lease_epoch)
    return theirs.claim(first, "b", seen) is not None


def epoch_stands_still(bench: Bench, ours: LeaseRegistry, theirs: LeaseRegistry) -> bool:
    first = bench.partition_ids[0]
    ours.register("a")
    ours.claim(first, "a", 0)
    return bool(state(theirs, first).lease_epoch != 1)


def stale_commit_accepted(bench: Bench, ours: LeaseRegistry, theirs: LeaseRegistry) -> bool:
    """PXRS's fault: who lost a lease and got it back still writes what he read before."""
    first = bench.partition_ids[0]
    ours.register("a")
    theirs.register("b")
    for registry, consumer, epoch in ((ours, "a", 0), (theirs, "b", 1)):
        held = registry.claim(first, consumer, epoch)
        assert held is not None
        registry.release(first, consumer, held.lease_epoch)
    assert ours.claim(first, "a", 2)
    return accepted(ours, first, "a", 5, 1)


def dead_commit_accepted(bench: Bench, ours: LeaseRegistry, theirs: LeaseRegistry) -> bool:
    first = bench.partition_ids[0]
    ours.register("a")
    assert ours.claim(first, "a", 0)
    bench.expire("a")
    return accepted(ours, first, "a", 5, 1)


def moved_back(bench: Bench, ours: LeaseRegistry, theirs: LeaseRegistry) -> bool:
    """A commit that timed out and lands after a later one, or twice."""
    first = bench.partition_ids[0]
    ours.register("a")
    assert ours.claim(first, "a", 0)
    ours.update_position(first, "a", 9, 1)
    return accepted(ours, first, "a", 5, 1) or accepted(ours, first, "a", 9, 1)


def decided_after_the_term(bench: Bench, ours: LeaseRegistry, theirs: LeaseRegistry) -> bool:
    ours.register("a")
    theirs.register("b")
    term = ours.lead("a")
    assert term is not None
    try:
        theirs.assign("b", term, {})
    except StaleLease:
        return False
    return True


def accepted(
    registry: LeaseRegistry, partition_id: int, consumer: str, position: int, epoch: int
) -> bool:
    before = registry.position(partition_id)
    try:
        registry.update_position(partition_id, consumer, position, epoch)
    except (StaleLease, BackwardCommit):
        assert registry.position(partition_id) == before
        return False
    return True


SCENARIOS = dict(
    zip(
        GUARDS,
        (
            taken_from_the_living,
            claimed_after_an_old_look,
            epoch_stands_still,
            stale_commit_accepted,
            dead_commit_accepted,
            moved_back,
            decided_after_the_term,
        ),
        strict=True,
    )
)


@proves("S9, S10, S11 on every registry")
@proves("S9, S10, S11 on every registry", guard="each guard in each store")
@proves("S9 to S11 for a consumer with `coordination`", guard="the fences of the stores")
@pytest.mark.parametrize("guard", GUARDS)
def test_guard(bench: Bench, guard: str) -> None:
    """The guard holds; a mutant without it does what must not be."""
    violated = SCENARIOS[guard]
    ours, theirs = bench.open(), bench.open()
    assert not violated(bench, ours, theirs)
    ours.deregister("a")
    theirs.deregister("b")
    bench.partition_ids = bench.partition_ids[1:]  # the mutant begins where nobody was
    bench.without(guard)
    assert violated(bench, bench.open(), bench.open()), f"nothing notices that {guard!r} is gone"


@pytest.mark.parametrize("scheme", ["etcd", "redis", "postgresql", "mysql"])
def test_a_store_that_is_not_there(scheme: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"{scheme}://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises((CoordinationUnavailable, DatabaseUnavailable)):
            open_registry(url, "tests")


@pytest.mark.parametrize(
    "url",
    [
        "kafka://there",
        "etcd://",
        "etcd://there:port",
        "etcd://one:2379,,two:2379",
        "etcd://one:2379,two:port",
        "etcd://one:2379,user:secret@two:2379",
        "redis://there:port",
        "redis://one:6379,two:6379",
    ],
)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ConfigurationError) as told:
        open_registry(url, "tests")
    assert "secret" not in str(told.value)


def test_only_the_store_that_is_used_is_imported() -> None:
    program = """
import sys
from penstock.leases.coordination import open_registry
open_registry("memory://here", "tests")
print([each for each in ("etcd3gw", "redis", "psycopg", "pymysql") if each in sys.modules])
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
