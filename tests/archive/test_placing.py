"""Copies by policy: quorum, stand-ins, time limits, and what is caught up later."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ops.archive import placing
from ops.archive.limits import CopyTimeout
from ops.archive.placement import Placement
from ops.archive.placing import Placed, QuorumMissed, place_copies
from ops.retention.clean import CleanResult
from ops.seal import copies_of, lacking, log_epochs
from penstock.archive.copies import key_of
from penstock.archive.log_reader import read
from penstock.archive.targets import Target
from penstock.database import call
from penstock.errors import ConfigurationError
from tests.archive.logs import Log, bring
from tests.kit.cleaning import clean
from tests.kit.placements import on_each
from tests.kit.proof import proves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
NAMES = ("a", "b", "c")


class House:
    """Three targets of a topic, which can go away and come back."""

    def __init__(self, log: Log, root: Path, spark: SparkSession) -> None:
        self.log, self.root, self.spark = log, root, spark
        self.targets = {name: Target(name, str(root / name)) for name in NAMES}

    def away(self, *names: str) -> None:
        """Unmount targets."""
        for name in names:
            (self.root / name).rename(self.root / f"{name}.away")

    def back(self, *names: str) -> None:
        """Mount them again."""
        for name in names:
            (self.root / f"{name}.away").rename(self.root / name)

    def find(self, name: str) -> Target:
        """The target of a name."""
        return self.targets[name]

    def place(self, placement: Placement, **rest: Any) -> Placed:
        """Bring what lacks copies."""
        return place_copies(
            lambda: self.spark, self.log.url, self.log.topic, placement, self.find, **rest
        )

    def sealed(self, events: int = 20, size: int = 5) -> None:
        """More events, sealed."""
        self.log.publish_many(events)
        self.log.seal(max_events=size)

    def holders(self) -> list[tuple[str, ...]]:
        """The targets of each log epoch."""
        return [each.targets for each in log_epochs(self.log.connection, self.log.topic)]

    def lacking(self, placement: Placement) -> int:
        """How many log epochs have too few copies."""
        return len(lacking(self.log.connection, self.log.topic, placement))


@pytest.fixture
def house(log: Log, tmp_path: Path, spark: SparkSession) -> House:
    """Three targets, each used once already, so that an empty place is known to be unmounted."""
    house = House(log, tmp_path, spark)
    house.sealed(4, 2)
    for each in house.targets.values():
        bring(log, each, log_epochs(log.connection, log.topic))
    return house


@proves("D10 on some of many targets")
def test_two_targets_of_three_down_at_once(house: House) -> None:
    """Publishing, reading and the quorum stay as promised; what is missing is caught up."""
    log = house.log
    two = Placement(dict.fromkeys(NAMES, 1), 2, 1)
    house.away("a", "b")
    house.sealed()  # publishing and sealing need no target
    placed = house.place(two)
    assert all(each.is_acknowledged and each.held == ("c",) for each in placed.epochs)
    assert len(placed.behind) == len(placed.epochs) == 4
    assert set(placed.away) == {"a", "b"}
    with pytest.raises(QuorumMissed, match=r"have fewer than 2 verified copies.* has 1: [ab]: the"):
        house.place(Placement(dict.fromkeys(NAMES, 1), 2, 2))
    with pytest.raises(QuorumMissed, match="4 of 4 log epochs"):
        house.place(Placement(dict.fromkeys(NAMES, 1), 3, 3))
    retain(house, copies=2)
    assert [(each.low_sequence, each.reason) for each in clean_all(house)] == [
        (1, "of log epoch 1 this run has read back 1 of 2 copies")
    ] * 2
    assert cold(house) == log.rows()
    house.back("a", "b")
    caught_up = house.place(two)
    assert (caught_up.behind, house.place(two).made) == ([], ())
    assert {len(holders) for holders in house.holders()} == {2, 3}
    assert house.lacking(two) == 0


@proves("D10 on some of many targets")
def test_the_rest_is_caught_up_and_a_stand_in_counts(house: House) -> None:
    """Guard: Placement.held, which counts every target of the policy."""
    placement = Placement(dict.fromkeys(NAMES, 1), 2, 2)
    house.away("a")
    house.sealed()
    assert house.place(placement).behind == []
    new = house.holders()
    assert new.count(("b", "c")) == 4, "c or b stood in for a"
    house.back("a")
    assert (house.lacking(placement), house.place(placement).made) == (0, ())
    assert house.lacking(on_each(*NAMES)) == 4
    assert {copy.target for copy in house.place(on_each(*NAMES)).made} == {"a"}


@proves("D10 on some of many targets")
def test_one_flipped_bit_is_found_and_repaired_from_another_target(house: House) -> None:
    """Also where the database has dropped the log epoch: the other copy is all there is."""
    log = house.log
    log.seal(max_events=5)
    retain(house, copies=3)
    rows = log.rows()
    assert all(each.low_sequence > 1 for each in clean_all(house))
    first = log_epochs(log.connection, log.topic)[0]
    (copy,) = [
        each
        for each in copies_of(log.connection, log.topic)
        if (each.partition, each.log_epoch, each.target) == (*key_of(first), "b")
    ]
    file = house.root / "b" / house.find("b").table_name(first.known_as, 2) / copy.location
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)
    every = on_each(*NAMES)
    placed = house.place(every, epochs=[key_of(first)], repair=True)
    assert [(made.target, made.written) for made in placed.made] == [("b", True)]
    house.away("a", "c")
    assert cold(house) == rows


def test_the_fastest_homes_make_the_quorum_and_all_runs_share_what_they_measure(
    house: House,
) -> None:
    """Guard: _State.wanted sorts by the recorded speed."""
    for name, seconds in {"a": 50.0, "b": 0.001, "c": 100.0}.items():
        for _ in range(60):
            call(house.log.connection, "note_target_speed", target=name, seconds=seconds)
    house.sealed()
    placed = house.place(Placement(dict.fromkeys(NAMES, 1), 3, 1))
    assert [copy.target for copy in placed.made] == ["b"] * 4 + ["a"] * 4 + ["c"] * 4
    speeds = {row[0]: row[1] for row in call(house.log.connection, "target_speeds")}
    assert speeds["a"] < 50 < 0.8 * 100 < speeds["c"] < 100


def test_a_target_whose_place_is_not_known_is_replaced(house: House) -> None:
    house.sealed()
    real = house.find

    def find(name: str) -> Target:
        if name == "a":
            raise ConfigurationError("targets.a is taken from A, which is not set")
        return real(name)

    house.find = find  # type: ignore[method-assign]
    placed = house.place(Placement(dict.fromkeys(NAMES, 1), 2, 2))
    assert {each.held for each in placed.epochs} <= {("b", "c"), ("c", "b")}
    assert "which is not set" in placed.away.get("a", "which is not set")


class Silent:
    """An object store that takes connections and never answers."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.taken: list[socket.socket] = []
        self.listener.settimeout(0.1)
        self.closed = threading.Event()
        self.accepting = threading.Thread(target=self._accept, daemon=True)
        self.accepting.start()

    def _accept(self) -> None:
        while not self.closed.is_set():
            with contextlib.suppress(TimeoutError):
                self.taken.append(self.listener.accept()[0])

    def target(self, name: str) -> Target:
        """A target on it."""
        options = {
            "aws_access_key_id": "AKIAIOSFODNN7EXAMPLE",
            "aws_secret_access_key": "none",
            "aws_region": "us-east-1",
            "aws_endpoint_url": f"http://127.0.0.1:{self.listener.getsockname()[1]}",
            "allow_http": "true",
        }
        return Target(name, "s3://bucket/archive", tuple(options.items()))

    def close(self) -> None:
        """Hang up."""
        self.closed.set()
        self.accepting.join()
        self.listener.close()
        for each in self.taken:
            each.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    """One."""
    store = Silent()
    yield store
    store.close()


@proves("D10 on some of many targets")
def test_a_stuck_target_meets_its_time_limit_and_the_next_one_takes_over(
    house: House, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: within().  It is asked once in a run, and comes last in the next one."""
    monkeypatch.setattr(placing, "EPOCHS_PER_JOB", 2)
    house.targets["d"] = silent.target("d")
    house.sealed()
    placement = Placement({**dict.fromkeys(NAMES, 1), "d": 1000}, 2, 2, copy_seconds=8)
    placed = house.place(placement)
    assert silent.taken
    assert placed.away == {
        "d": "a copy on the archive target d was not done within 8 s. look at the target's "
        "network and disks; or raise copy_timeout in the policy file"
    }
    assert placed.behind == []
    speeds = {row[0]: row[1:3] for row in call(house.log.connection, "target_speeds")}
    assert (speeds["d"][1], max(speeds, key=lambda name: speeds[name][0])) == (1, "d")


@proves("D10 on some of many targets")
def test_a_spark_job_that_is_stuck_is_cancelled(house: House) -> None:
    """Guard: cancel_jobs(); without it the task would hold its core for good."""
    from ops.archive.limits import within
    from ops.spark import register
    from tests.archive.stuck_source import StuckSource

    register(house.spark, StuckSource)

    def read_it(_: threading.Event) -> None:
        house.spark.read.format("stuck").load().collect()

    with pytest.raises(CopyTimeout, match=re.escape("a copy on x was not done within 4 s")):
        within(4, "a copy on x", read_it, house.spark)
    tracker = house.spark.sparkContext.statusTracker()
    end = time.monotonic() + 20
    while tracker.getActiveJobsIds() and time.monotonic() < end:
        time.sleep(0.05)
    assert tracker.getActiveJobsIds() == []


def retain(house: House, copies: int) -> None:
    """A policy under which everything is due."""
    call(
        house.log.connection, "set_retention", topic=house.log.topic, minimum_age_seconds=0,
        max_bytes=None, copies=copies, origin="hand", targets=list(NAMES),
    )  # fmt: skip


def clean_all(house: House) -> tuple[CleanResult, ...]:
    """A run of clean that drops what it can."""
    return clean(house.log.url, house.log.topic, *house.targets.values()).partitions


def cold(house: House) -> list[tuple[Any, ...]]:
    """Every event of the topic as FETCH reads it, from whatever target serves it."""
    rows = []
    for partition in range(2):
        given = list(house.targets.values())
        with read(house.log.url, house.log.topic, partition, 1, targets=given) as reader:
            rows += [
                (row.pop("partition"), *(row[name] for name in row if name != "log_epoch"))
                for batch in reader
                for row in batch.to_pylist()
            ]
    return rows
