"""The history of an archive: Spark's driver, its tasks and the server are killed, events go on.

At the end the log is dropped to its last event, and the archive is held against all that the log
ever had: column for column, and against what publishers were told.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ops.archive.auditing import Audited, audit_copies
from ops.archive.copy_readings import Reader
from ops.seal import log_epochs, seal
from penstock import database
from penstock.archive.format import DAYS, SPARK_SCHEMA, TABLE_SCHEMA
from penstock.archive.table import ArchiveTable
from penstock.records import LogEpoch
from penstock.topics.names import describe_topic
from tests.archive.fuses import PLACES, fuse
from tests.faults import checker
from tests.faults.archiver import TARGET, Kept, read_books, target_of
from tests.faults.attack import cut_small
from tests.faults.mixed import PUBLISHERS, Mixed
from tests.faults.servers import Crashing
from tests.faults.told import Anomaly
from tests.faults.world import PATIENCE, TOPIC, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVER = "archiver0"
#: What a session of Spark may need to start on a busy machine.
START_SECONDS = 300
#: How far ahead of what is sealed the next task dies.
_AHEAD = 3

#: An event of the log or of the archive: the columns of `TABLE_SCHEMA`.
Row = tuple[Any, ...]


@dataclass
class Log:
    """All that the log ever had, in its log epochs."""

    rows: list[Row]
    #: What a page of the log has said otherwise than an earlier one.
    changed: list[str]


def whole_log(kept: Iterable[Kept], epochs: Iterable[LogEpoch]) -> Log:
    """What was written down, once, each with the log epoch that it was sealed in."""
    known: dict[tuple[int, int], Kept] = {}
    changed = []
    for row in kept:
        place = row[0], row[1]
        if known.setdefault(place, row) != row:
            changed.append(f"{place} is {row} in the log, and was {known[place]}")
    rows = []
    for epoch in epochs:
        for sequence in range(epoch.first_sequence, epoch.last_sequence + 1):
            partition, *rest = known.pop((epoch.partition, sequence), (epoch.partition, sequence))
            rows.append((partition, epoch.log_epoch, *rest))
    changed += [f"{place} is in no log epoch" for place in known]
    return Log(rows, changed)


def differences(expected: Iterable[Row], found: Iterable[Row]) -> list[str]:
    """Where two sets of events are not the same: one line for each event that is not."""
    left: dict[tuple[int, int], list[Row]] = {}
    for row in found:
        left.setdefault((row[0], row[2]), []).append(row)
    told = []
    for row in expected:
        place = row[0], row[2]
        there = left.pop(place, [])
        if not there:
            told.append(f"{place} is missing")
        elif len(there) > 1:
            told.append(f"{place} is there {len(there)} times")
        elif there[0] != row:
            told.append(f"{place} differs in {_columns(row, there[0])}")
    return told + [f"{place} was never in the log" for place in left]


def _columns(row: Row, other: Row) -> str:
    if len(row) != len(other):
        return "its number of columns: it was never written down"
    pairs = zip(TABLE_SCHEMA.names, row, other, strict=True)
    return ", ".join(f"{name} ({a!r}, {b!r})" for name, a, b in pairs if a != b)


def archived(spark: SparkSession, folder: Path, known_as: str) -> list[Row]:
    """Every event of the archive, as Spark reads it."""
    held = ArchiveTable(target_of(folder), known_as)
    files = sorted(str(held.folder(DAYS) / each.path) for each in held.day_files())
    found = spark.read.schema(SPARK_SCHEMA).parquet(*files).select(*TABLE_SCHEMA.names)
    table = found.toArrow()
    return [tuple(row[name] for name in TABLE_SCHEMA.names) for row in table.to_pylist()]


@dataclass
class ArchiveWorld(World):
    """A topic without subscriptions, and its archive beside the histories."""

    subscriptions: tuple[str, ...] = ()
    orphans: list[psutil.Process] = field(default_factory=list)

    def epochs(self) -> list[LogEpoch]:
        """All that were sealed."""
        with closing(self.connect()) as own:
            return log_epochs(own, TOPIC)

    def known_as(self) -> str:
        """The name of the archive's table."""
        with closing(self.connect()) as own:
            return describe_topic(own, TOPIC).known_as

    def end_orphans(self) -> None:
        """What a driver has left; its JVM ends when it notices."""
        _, alive = psutil.wait_procs(self.orphans, timeout=30)
        for each in alive:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(alive, timeout=10)

    def log(self) -> Log:
        """All that it ever had."""
        return whole_log(read_books(self.folder), self.epochs())

    def copies(self) -> dict[tuple[int, int], int]:
        """In how many places of the table's log each log epoch is."""
        table = ArchiveTable(target_of(self.folder), self.known_as())
        return {key: len(places) for key, places in table.committed().items()}

    def audit(self, read: Reader) -> Audited:
        """By the product's own reader."""
        return audit_copies(read, self.url, TOPIC, target_of(self.folder))

    def judged(self, rows: Iterable[Row]) -> list[Anomaly]:
        """What publishers were told, held against the archive in the place of the log."""
        names = TABLE_SCHEMA.names
        events = (dict(zip(names, row, strict=True)) for row in rows)
        dump = self.dump()
        dump["log"] = [
            [
                each["partition"], each["sequence"], each["payload"].partition(b" ")[0].decode(),
                each["key"], each["sequenced_at"].timestamp(),
            ]
            for each in events
        ]  # fmt: skip
        records, _ = checker.read(self.folder)
        return checker.check(records, dump)


class ArchiveAttack(Mixed):
    """Faults drawn by a seed until so many log epochs are archived."""

    world: ArchiveWorld

    def __init__(self, world: ArchiveWorld, server: Crashing, seed: int) -> None:
        super().__init__(world, server, seed)
        self.faults |= {
            "kill the driver": self.kill_driver,
            "kill driver and tasks": self.kill_all_of_driver,
            "a task dies": self.task_dies,
            "kill the cleaner": lambda: self.kill_and_start("cleaner0"),
            "crash in a job": self.crash_in_a_job,
        }

    def begin_attack(self, pause: float, epoch_events: int) -> None:
        """Start everybody, and wait until something is archived and dropped."""
        world = self.world
        world.set_up()
        with closing(world.connect()) as own:
            cut_small(own, world.engine)
            kept = {"minimum_age_seconds": 0, "copies": 1, "origin": "hand", "targets": [TARGET]}
            database.call(own, "set_retention", topic=TOPIC, max_bytes=None, **kept)
        (world.folder / "fuses").mkdir()
        world.tend = world.revive
        world.start("sequencer", "s0")
        for number in range(2):
            drawn = ["--seed", str(self.chance.random())[2:9]]
            world.start("publisher", f"p{number}", "--pause", str(pause), *drawn)
        world.start("odd", "odd0", "--pause", str(5 * pause))
        world.start("archiver", ARCHIVER, "--pause=0.2", f"--batch={epoch_events}")
        world.start("cleaner", "cleaner0", "--pause=0.5")
        world.until(lambda: world.records("copy"), "something is archived", START_SECONDS)
        world.until(lambda: world.records("lowered"), "something is dropped")

    def moves(self) -> int:
        """How many copies were recorded."""
        return len(self.world.records("copy"))

    def progress(self, commits: int = 3) -> None:
        """Until so many more are; Spark may have to start."""
        before = self.moves()
        self.world.until(
            lambda: self.moves() >= before + commits, "archiving goes on", START_SECONDS
        )

    def attack(self, faults: list[str], epochs: int) -> None:
        """These faults, and again some, until so many copies were recorded."""
        self.play(faults)
        while self.moves() < epochs:
            self.play(self.chance.sample(faults, 2))

    def kill_and_start(self, name: str) -> None:
        """SIGKILL, and another one in its place."""
        each = self.world.running[name]
        self.world.kill(name)
        self.world.start(each.role, name, *each.options)

    def kill(self) -> None:
        """A publisher or the sequencer."""
        running = self.world.running.values()
        roles = {each.role for each in running} - {"archiver", "cleaner"}
        self.kill_and_start(self._chosen(roles))

    def anyone(self) -> str:
        """Whose connections are cut: Spark's most of all."""
        return self.chance.choice([ARCHIVER, ARCHIVER, super().anyone()])

    def kill_driver(self) -> None:
        """The Python program; its JVM and tasks end when they notice."""
        self._kill_driver(with_tasks=False)

    def kill_all_of_driver(self) -> None:
        """Driver, JVM and the processes of its tasks, at once."""
        self._kill_driver(with_tasks=True)

    def _kill_driver(self, *, with_tasks: bool) -> None:
        self.in_a_job()
        process = psutil.Process(self.world.running[ARCHIVER].process.pid)
        children = process.children(recursive=True)
        self.kill_and_start(ARCHIVER)
        for child in children if with_tasks else ():
            with suppress(psutil.NoSuchProcess):
                child.kill()
        self.world.orphans += children

    def in_a_job(self) -> None:
        """Somewhere in the next run of archive, and not always in its beginning."""
        begun = len(self.world.records("archive", "invoke"))
        self.world.until(
            lambda: len(self.world.records("archive", "invoke")) > begun, "a run has begun",
            START_SECONDS,
        )  # fmt: skip
        self.wait(self.chance.uniform(0, 2.0))

    def crash_in_a_job(self) -> None:
        """The server dies while tasks read it, or while copies are recorded."""
        self.in_a_job()
        self.crash()

    def task_dies(self) -> None:
        """SIGKILL of a task that has written its file, or of the process that commits."""
        place = self.chance.choice(PLACES)
        partition = self.chance.randrange(self.world.partitions)
        sealed = [each.log_epoch for each in self.world.epochs() if each.partition == partition]
        key = partition, max(sealed, default=0) + _AHEAD
        self.world.note(f"kill of Spark: {place}", str(key))
        file = fuse(target_of(self.world.folder), place, key)
        file.touch()
        self.world.until(lambda: not file.exists(), f"{file.name} blows", START_SECONDS)

    def end(self) -> None:
        """Publishers stop; all is sequenced, sealed, archived and dropped; all leave in order."""
        world = self.world
        running = list(world.running.values())
        for name in [each.name for each in running if each.role in PUBLISHERS]:
            assert world.terminate(name) == 0, name
        world.drain()
        with closing(world.connect()) as own:
            seal(own, TOPIC, max_age_seconds=0)
        world.until(
            lambda: all(each.targets for each in world.epochs()), "all is archived", START_SECONDS
        )
        world.until(self._all_is_dropped, "all is dropped")
        world.tend = None
        for name in list(world.running):
            assert world.terminate(name, PATIENCE) == 0, name
        world.end_orphans()

    def _all_is_dropped(self) -> bool:
        ends: dict[int, int] = {}
        for each in self.world.epochs():
            ends[each.partition] = max(ends.get(each.partition, 0), each.last_sequence)
        with closing(self.world.connect()) as own:
            low = dict(database.call(own, "low_sequences", topic=TOPIC))
        return low == {partition: last + 1 for partition, last in ends.items()}
