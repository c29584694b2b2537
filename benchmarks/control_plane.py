"""What Dagster's part costs with many topics and many log epochs.

How long the definitions take to load; how long the ticks of the sensors take with few and with many
log epochs; how many ticks the first look at a long log takes; what an idle `dagster dev` costs.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil

from benchmarks.bench import Bench
from benchmarks.measure import Aim, Figure, Settings, figure
from benchmarks.processor import processor_seconds
from ops.archive.archiving import archive_epochs
from ops.seal import seal
from ops.spark import local_session
from penstock.archive.targets import Target
from penstock.database import config
from penstock.topics import names
from tools.dev import DAEMON

ROOT = Path(__file__).resolve().parents[1]
TOPICS, EPOCHS, FEW, TICKS, LOADS = 1_000, 100_000, 1_000, 40, 3
#: So many topics of the policy file have an archive.
ARCHIVED = 100
#: The idle database has so many events, all archived.
ARCHIVED_EVENTS = 1_000
#: The sensors whose work could grow with the number of log epochs.
SENSORS = ("sealed", "seal", "lost_copies", "backfills", "backlog")
#: Until the code is loaded and each sensor has looked at every log once, a few in each tick.
SETTLE_SECONDS = 1_200.0
#: Each job that runs every five minutes has run once in it.
IDLE_SECONDS = 300.0
#: Rows go to the server in lots of so many.
_LOT = 10_000

_LOAD = """
import time
from dagster_project import definitions
begun, used = time.perf_counter(), time.process_time()
definitions.defs().get_repository_def().load_all_definitions()
print(time.perf_counter() - begun, time.process_time() - used)
"""


def cases(bench: Bench, settings: Settings) -> Iterator[Figure]:
    """The log with few log epochs is in a database of its own, so that both take turns."""
    with tempfile.TemporaryDirectory() as folder, bench.another() as other:
        epochs = settings.amount(EPOCHS)
        many = House(bench, Path(folder) / "many", settings.amount(TOPICS), epochs)
        few = House(other, Path(folder) / "few", settings.amount(TOPICS), min(FEW, epochs))
        with many.environment():
            yield from _loads(many)
        yield from _ticks(many, few)
        yield _attach(many)
    with tempfile.TemporaryDirectory() as folder, bench.another() as other:
        quiet = House(other, Path(folder) / "quiet", settings.amount(TOPICS), 0)
        quiet.archive()
        with quiet.environment():
            yield from _idle(quiet, settings)


@dataclass
class House:
    """A database with topics, of which one has log epochs, a minute apart; and a policy file."""

    bench: Bench
    folder: Path
    topics: int
    epochs: int
    first: str = field(init=False)
    begin: dt.datetime = field(init=False)
    partition: int = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        found = [self.bench.new_topic(1) for _ in range(self.topics)]
        self.first = found[0]
        lines = ["targets: {local: archive}", "topics:"]
        lines += [f"  {topic}: {{archive: [local]}}" for topic in found[:ARCHIVED]]
        (self.folder / "policies.yaml").write_text("\n".join(lines), encoding="utf-8")
        ranges = names.partition_ranges(self.bench.connection, self.first)
        self.partition = ranges[0].partition_id
        self.begin = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=self.epochs + TICKS)
        for start in range(1, self.epochs + 1, _LOT):
            self.seal(start, min(start + _LOT - 1, self.epochs))
        self.bench.analyse(f"{config.schema_name()}.log_epochs")

    def seal(self, first: int, last: int) -> None:
        """Log epochs of one event each; the sensors only list them."""
        self.bench.executemany(
            f"INSERT INTO {config.schema_name()}.log_epochs (partition_id, log_epoch,"
            " first_sequence, last_sequence, event_count, checksum, sealed_at)"
            " VALUES (%s, %s, %s, %s, 1, %s, %s)",
            (
                (self.partition, n, n, n, hashlib.md5(b"%d" % n).hexdigest(), self.sealed_at(n))
                for n in range(first, last + 1)
            ),
        )

    def archive(self) -> None:
        """Real log epochs of one topic, archived: then nothing is left to do."""
        self.bench.fill([self.first], ARCHIVED_EVENTS)
        self.bench.work_off()
        seal(self.bench.connection, self.first, max_events=ARCHIVED_EVENTS // 10)
        session = local_session("penstock benchmark")
        try:
            target = Target("local", str(self.folder / "archive"))
            archive_epochs(session, self.bench.url, self.first, target)
        finally:
            session.stop()

    def sealed_at(self, number: int) -> dt.datetime:
        """When a log epoch was sealed.  MySQL and MariaDB keep times in UTC, without a zone."""
        at = self.begin + dt.timedelta(minutes=number)
        return at if self.bench.engine == "postgres" else at.replace(tzinfo=None)

    @contextmanager
    def environment(self) -> Iterator[None]:
        """The environment that names database and policy file."""
        own = {
            "PENSTOCK_DATABASE_URL": self.bench.url,
            "PENSTOCK_POLICIES": str(self.folder / "policies.yaml"),
        }
        before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _loads(house: House) -> Iterator[Figure]:
    """The code server's load, in processes of their own, after the imports."""
    found = []
    for _ in range(LOADS):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _LOAD],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        found.append([1_000 * float(each) for each in done.stdout.split()])
    wall, used = (median(each) for each in zip(*found, strict=True))
    yield figure(
        "control_plane_load", wall, unit="ms", rows=house.topics, batch=1, aim=Aim(at_most=5_000)
    )
    yield figure("control_plane_load_processor", used, unit="ms", rows=house.topics, batch=1)


def _ticks(many: House, few: House) -> Iterator[Figure]:
    """The ticks of all sensors while a log epoch comes before each; both logs in turns."""
    with _sensors(many) as long, _sensors(few) as short:
        for sensors in (long, short):
            sensors.attach_at_the_end()
        for number in range(TICKS):
            for sensors in (long, short) if number % 2 else (short, long):
                sensors.round(number)
        slowest = max(SENSORS, key=lambda name: max(long.spent[name]))
        print(f"  the slowest: {slowest}, {max(long.spent[slowest]):.0f} ms", flush=True)
        ours, peer = long.percentile(), short.percentile()
        used, used_by_few = long.processor / TICKS, short.processor / TICKS
    yield figure(
        "control_plane_tick", ours, unit="ms", rows=many.epochs, batch=1, aim=Aim(at_most=1_000)
    )
    yield figure(
        "control_plane_ticks", 1_000 / ours, unit="ticks/s", rows=many.epochs, batch=1,
        peer=1_000 / peer, ratio=peer / ours, against=f"{few.epochs:,} log epochs",
        aim=Aim(cost=1.2),
    )  # fmt: skip
    yield figure(
        "control_plane_tick_processor", used, unit="ms", rows=many.epochs, batch=len(SENSORS),
        peer=used_by_few, ratio=used_by_few / used, against=f"{few.epochs:,} log epochs",
        aim=Aim(cost=1.2),
    )  # fmt: skip


class Sensors:
    """The sensors of the definitions, ticked as the daemon ticks them."""

    def __init__(self, house: House, instance: Any) -> None:
        from dagster_project.catalogue import read
        from dagster_project.common import beta_allowed
        from dagster_project.definitions import build

        with house.environment(), beta_allowed():
            self.defs = build(read())
        self.house, self.instance = house, instance
        self.repository = self.defs.get_repository_def()
        self.cursors: dict[str, str | None] = {}
        self.reported = 0
        self.spent: dict[str, list[float]] = {name: [] for name in SENSORS}
        #: Milliseconds of a processor, in this process and in the server of the database.
        self.processor = 0.0

    def round(self, number: int) -> None:
        """A tick of each sensor, with a log epoch before it."""
        new = self.house.epochs + 1 + number
        self.house.seal(new, new)
        before = self._used()
        for name in SENSORS:
            self.spent[name].append(1_000 * self.tick(name))
        self.processor += 1_000 * (self._used() - before)

    def _used(self) -> float:
        return time.process_time() + processor_seconds(self.house.bench.server_pid)

    def percentile(self) -> float:
        """Within how many milliseconds 95 % of all ticks were."""
        return quantiles([each for ticks in self.spent.values() for each in ticks], n=20)[-1]

    def tick(self, name: str) -> float:
        """One tick, with what it reports; returns its seconds."""
        import dagster as dg

        begun = time.perf_counter()
        with (
            self.house.environment(),
            dg.build_sensor_context(
                instance=self.instance,
                cursor=self.cursors.get(name),
                sensor_name=name,
                repository_def=self.repository,
                resources=dict(self.defs.resources or {}),
            ) as context,
        ):
            done = self.defs.resolve_sensor_def(name).evaluate_tick(context)
        for event in done.asset_events:
            self.instance.report_runless_asset_event(event)
        self.cursors[name], self.reported = done.cursor, len(done.asset_events)
        return time.perf_counter() - begun

    def attach_at_the_end(self) -> None:
        """As if earlier ticks had seen all but the last minutes, and told of every log."""
        from dagster_project.sensors import hours
        from dagster_project.triggers import dump_cursor

        house = self.house
        found = names.list_topics(house.bench.connection)
        topics = hours.topics_digest(each.address for each in found)
        after = house.begin + dt.timedelta(minutes=house.epochs)
        self.cursors["sealed"] = dump_cursor(
            hours.VERSION, topics=topics, after=after.isoformat(), seen={}
        )
        for name in (*SENSORS, "backlog"):
            self.tick(name)
        while self.reported:
            self.tick("backlog")


@contextmanager
def _sensors(house: House) -> Iterator[Sensors]:
    """The sensors, and an instance of Dagster in files, as `dagster dev` has it."""
    import dagster as dg

    home = house.folder / f"instance{time.monotonic_ns()}"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        yield Sensors(house, instance)


def _attach(house: House) -> Figure:
    """The first look at the long log: the longest of its ticks."""
    spent: list[float] = []
    with _sensors(house) as sensors:
        while not spent or sensors.reported:
            spent.append(1_000 * sensors.tick("sealed"))
    print(f"  the first look at the long log took {len(spent)} ticks", flush=True)
    return figure(
        "control_plane_attach", max(spent), unit="ms", rows=house.epochs, batch=1,
        aim=Aim(at_most=1_000),
    )  # fmt: skip


def _idle(house: House, settings: Settings) -> Iterator[Figure]:
    """What `dagster dev` costs while nothing happens, all being archived."""
    with _dagster_dev(house) as process:
        time.sleep(min(SETTLE_SECONDS, 10 * settings.hold_seconds))
        before, begun = processor_seconds(process.pid), time.monotonic()
        time.sleep(min(IDLE_SECONDS, settings.hold_seconds))
        used, seconds = processor_seconds(process.pid) - before, time.monotonic() - begun
        if process.poll() is not None:
            raise RuntimeError(f"dagster dev has ended: {_log_of(house).read_text()[-2_000:]}")
        family = [each.name() for each in psutil.Process(process.pid).children(recursive=True)]
    yield figure(
        "control_plane_idle", 60 * used / seconds, unit="processor s/min", rows=house.topics,
        batch=1, aim=Aim(at_most=3),
    )  # fmt: skip
    javas = sum("java" in each for each in family)
    yield figure(
        "control_plane_idle_jvms", javas, unit="JVMs", rows=house.topics, batch=1,
        aim=Aim(at_most=0),
    )  # fmt: skip


def _log_of(house: House) -> Path:
    return house.folder / "dev.log"


def _can_be_interrupted() -> None:
    """`dagster dev` ends its children by SIGINT, which a shell may have told all to ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _dagster_dev(house: House) -> Iterator[subprocess.Popen[bytes]]:
    home = house.folder / "dagster"
    home.mkdir()
    shutil.copy(ROOT / "tools" / "dagster.yaml", home / "dagster.yaml")
    # dagster-webserver and dagster-daemon are looked up on the PATH.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with _log_of(house).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagster", "dev", "-h", "127.0.0.1", "-p", "0"],
            cwd=ROOT, env=os.environ | DAEMON | {"DAGSTER_HOME": str(home), "PATH": path},
            stdout=log, stderr=log, preexec_fn=_can_be_interrupted,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)
