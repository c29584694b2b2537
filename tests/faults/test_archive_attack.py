"""The archive's history at scale: Spark archives while it and the server are killed."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ops.archive.auditing import Audited
from ops.archive.read_back import plain_reader, spark_reader
from penstock.archive.copies import key_of
from penstock.archive.table import ArchiveTable
from penstock.records import LogEpoch
from tests import servers
from tests.faults.archive_attack import (
    ArchiveAttack,
    ArchiveWorld,
    Log,
    archived,
    differences,
    whole_log,
)
from tests.faults.archiver import target_of
from tests.faults.servers import crashing_server
from tests.faults.world import SEED
from tests.kit.proof import proves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: PENSTOCK_FAULT_EPOCHS=400 is a longer run.
EPOCHS = int(os.environ.get("PENSTOCK_FAULT_EPOCHS", "120"))
EPOCH_EVENTS = 100
FAULTS = [
    "crash", "a task dies", "crash in a job", "kill the driver", "cut", "a task dies", "kill",
    "kill the cleaner", "crash in a job", "kill driver and tasks", "commit unknown", "a task dies",
]  # fmt: skip


@proves("D9, D10 under attack")
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", servers.DATABASES)
def test_an_archive_under_attack_equals_the_log(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest, java_home: Path
) -> None:
    """Every column of every event, once, when the log is dropped to its end; and what bites.

    Guards: those of tests/archive/test_kill_story.py, D9, D10, and D1 to D4 in the archive.
    """
    if engine not in servers.chosen():
        pytest.skip(f"this run is about {', '.join(servers.chosen())}")
    with (
        crashing_server(engine, tmp_path / "server") as server,
        ArchiveWorld(server.url, tmp_path / "history", target=server.address) as world,
    ):
        attack = ArchiveAttack(world, server, SEED)
        begun = time.monotonic()
        attack.begin_attack(0.03, EPOCH_EVENTS)
        attack.attack(random.Random(SEED).sample(FAULTS, len(FAULTS)), EPOCHS)
        attack.end()
        attacked = time.monotonic()
        spark = request.getfixturevalue("spark")
        log, epochs = world.log(), world.epochs()
        rows = archived(spark, world.folder, world.known_as())
        found = log.changed + differences(log.rows, rows)
        audits = [world.audit(read) for read in _readers(world, spark)]
        judged = world.judged(rows)
        print(json.dumps({  # noqa: T201 - make test-long ARGS="-k archive_under_attack -s" shows it
            "engine": engine, "log epochs": len(epochs), "events": len(rows),
            "faults": dict(world.done), "server kills": world.done["crash"],
            "seconds": round(attacked - begun), "judged in": round(time.monotonic() - attacked),
            "differences": len(found), "anomalies": len(judged),
        }))  # fmt: skip
        assert found == [], f"seed {SEED}: {dict(world.done)}"
        assert judged == [], f"seed {SEED}: {dict(world.done)}"
        assert audits == [Audited(len(epochs), len(rows), ())] * 2
        assert world.copies() == {key_of(each): 1 for each in epochs}
        assert not world.records("damaged")
        assert len(epochs) >= EPOCHS
        assert world.done["crash"] >= 3
        _assert_it_bites(world, spark, log)


def _readers(world: ArchiveWorld, spark: SparkSession) -> list[Any]:
    return [spark_reader(lambda: spark, world.url), plain_reader(world.url)]


def _assert_it_bites(world: ArchiveWorld, spark: SparkSession, log: Log) -> None:
    """Mutants: a bit of a payload, a row that is gone, one that is there twice; each is found."""
    chosen = random.Random(SEED).sample(world.epochs(), len(SPOILED))
    for epoch, spoil in zip(chosen, SPOILED, strict=True):
        _spoil(world, epoch, spoil)
    found = differences(log.rows, archived(spark, world.folder, world.known_as()))
    places = [(each.partition, each.first_sequence) for each in chosen]
    assert sorted(each.partition(")")[0] + ")" for each in found) == sorted(map(str, places))
    audited = world.audit(plain_reader(world.url))
    assert {(each.partition, each.log_epoch) for each in audited.forgotten} == set(
        map(key_of, chosen)
    )


def _flipped(row: pa.Table) -> pa.Table:
    payload = bytearray(row.column("payload")[0].as_py())
    payload[-1] ^= 1
    place = row.schema.get_field_index("payload")
    return row.set_column(
        place, row.schema.field(place), pa.array([bytes(payload)], row.schema.field(place).type)
    )


#: What may become of a row: other rows.
SPOILED: list[Callable[[pa.Table], list[pa.Table]]] = [
    lambda row: [_flipped(row)],
    lambda row: [],
    lambda row: [row, row],
]


def _spoil(world: ArchiveWorld, epoch: LogEpoch, spoil: Any) -> None:
    """Write the file of a log epoch anew, with something else for its first row."""
    table = ArchiveTable(target_of(world.folder), world.known_as())
    (entry,) = table.committed()[key_of(epoch)]
    path = table.target.root / table.file(entry)
    whole = pq.read_table(path, partitioning=None)
    first, after = entry.first_row, entry.first_row + 1
    parts = [whole.slice(0, first), *spoil(whole.slice(first, 1)), whole.slice(after)]
    pq.write_table(pa.concat_tables(parts), path, compression="zstd")


# The comparison itself, without a server.


def _row(sequence: int, payload: bytes = b"x", log_epoch: int = 1) -> tuple[Any, ...]:
    return (0, log_epoch, sequence, f"id{sequence}", None, "t", "c", "{}", payload, 1, 2, 1)


WHOLE = [_row(sequence) for sequence in range(1, 5)]
WRONG = {
    "a byte": ([_row(1, b"y"), *WHOLE[1:]], "(0, 1) differs in payload (b'x', b'y')"),
    "a row is gone": (WHOLE[:-1], "(0, 4) is missing"),
    "a row is there twice": ([*WHOLE, WHOLE[2]], "(0, 3) is there 2 times"),
    "a row of nobody": ([*WHOLE, _row(5)], "(0, 5) was never in the log"),
    "another log epoch": (
        [*WHOLE[:3], _row(4, log_epoch=2)], "(0, 4) differs in log_epoch (1, 2)",
    ),
}  # fmt: skip


@proves("D9, D10 under attack", guard="the comparison")
@pytest.mark.parametrize("name", WRONG)
def test_each_difference_is_found(name: str) -> None:
    """Mutants of an archive, each with one event that is wrong."""
    rows, told = WRONG[name]
    assert differences(WHOLE, WHOLE) == []
    assert differences(WHOLE, rows) == [told]


@proves("D9, D10 under attack", guard="the comparison")
def test_a_log_that_was_not_written_down_is_no_log() -> None:
    """What the cleaner had dropped before it was in the book, or what changed between two pages."""
    kept = [(row[0], *row[2:]) for row in WHOLE]
    epoch = LogEpoch("t", 0, 1, 1, 4, 4, "")
    assert whole_log(kept, [epoch]) == Log(WHOLE, [])
    assert whole_log([*kept, *kept], [epoch]) == Log(WHOLE, [])
    gone = whole_log(kept[1:], [epoch])
    assert differences(gone.rows, WHOLE) == [
        "(0, 1) differs in its number of columns: it was never written down"
    ]
    other = (kept[0][0], kept[0][1], "another", *kept[0][3:])
    assert len(whole_log([*kept, other], [epoch]).changed) == 1
    assert len(whole_log([*kept, (0, 5, *kept[0][2:])], [epoch]).changed) == 1
