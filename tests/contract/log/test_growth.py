"""The arithmetic of docs/evidence/scale.md, against what a small log really has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.growth import BYTES, Log, growth, page, stored
from ops.seal import log_epochs, seal
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count
from tests.kit.copies import record
from tests.kit.log import TOPIC, drain, part, topic

TARGETS = ("one", "two")
PARTITIONS = 3
FILLED = 20_000


@pytest.mark.parametrize("events", [3, 300, 1_290])
def test_the_rows_are_those_of_the_model(db: ContractDatabase, events: int) -> None:
    own = db.connect()
    topic(own, PARTITIONS)
    publish_batch(own, [Message(TOPIC, b"x", partition=n % PARTITIONS) for n in range(events)])
    drain(own)
    seal(own, TOPIC, max_events=100, max_age_seconds=0)
    for epoch in log_epochs(own, TOPIC):
        for target in TARGETS:
            record(own, epoch, target)
    found = growth(Log(events, PARTITIONS, epoch_events=100, targets=2))
    assert count(db, "log_epochs") == found.log_epochs
    assert count(db, "epoch_copies") == found.epoch_copies
    assert count(db, "chunks") == found.chunks


def test_the_bytes_of_a_row(db: ContractDatabase, record_testsuite_property: Any) -> None:
    """Of the same width as real ones.  The figures of the model may be off by a third."""
    own = db.connect()
    topic(own, 1)
    for _ in range(4):
        publish_batch(own, [Message(TOPIC, b"x")] * 5_000)
    drain(own)
    _fill(db, part(own), FILLED)
    found = {
        "log_epochs": _bytes(db, "log_epochs") / FILLED,
        "epoch_copies": _bytes(db, "epoch_copies") / FILLED,
        "index": _bytes(db, "chunks") / FILLED,
    }
    record_testsuite_property(f"bytes {db.engine}", found)
    expected = BYTES[db.engine]
    for name, value in found.items():
        assert 0.67 < value / expected[name] < 1.5, found


def _fill(db: ContractDatabase, partition_id: int, rows: int) -> None:
    """So many log epochs, one after the other as they come, each with one copy."""
    numbers = "generate_series(1, %(rows)s) AS s (n)"
    if db.engine != "postgres":
        digits = " CROSS JOIN ".join(
            f"(SELECT {place} * d.i AS n FROM JSON_TABLE('[0,1,2,3,4,5,6,7,8,9]',"
            f" '$[*]' COLUMNS (i INT PATH '$')) AS d) AS d{place}"
            for place in (1, 10, 100, 1_000, 10_000)
        )
        total = " + ".join(f"d{place}.n" for place in (1, 10, 100, 1_000, 10_000))
        numbers = f"(SELECT 1 + {total} AS n FROM {digits} HAVING n <= %(rows)s ORDER BY n) AS s"
    binds = {"part": partition_id, "rows": rows}
    db.run(
        "INSERT INTO penstock.log_epochs (partition_id, log_epoch, first_sequence, last_sequence,"
        " event_count, checksum) SELECT %(part)s, s.n, s.n, s.n, 1, REPEAT('c', 64)"
        f" FROM {numbers}",
        binds,
    )
    location = "sealed_date=2026-01-31/01890a5d-ac96-774b-bcce-b302099a8057.parquet"
    db.run(
        "INSERT INTO penstock.epoch_copies (partition_id, log_epoch, target, location, state,"
        f" detail, layout) SELECT %(part)s, s.n, 'nearby', '{location}', 'verified', '', 2"
        f" FROM {numbers}",
        binds,
    )


def _bytes(db: ContractDatabase, table: str) -> float:
    """What a table and its indexes take on the disk, all its slices together."""
    if db.engine == "postgres":
        query = (
            f"SELECT pg_total_relation_size('penstock.{table}') + COALESCE(("
            "SELECT sum(pg_total_relation_size(i.inhrelid)) FROM pg_inherits AS i"
            f" WHERE i.inhparent = 'penstock.{table}'::regclass), 0)"
        )
    else:
        db.run(f"ANALYZE TABLE penstock.{table}")
        query = (
            "SELECT DATA_LENGTH + INDEX_LENGTH FROM information_schema.TABLES"
            f" WHERE TABLE_SCHEMA = 'penstock' AND TABLE_NAME = '{table}'"
        )
    ((found,),) = db.run(query)
    return float(found)


def test_what_is_stored_follows_the_rows() -> None:
    log = Log(10**9, 64, hot_events=10**6)
    kept = stored(log, "postgres")
    assert growth(log).log_epochs == 64 * 157 == 10_048
    assert kept["log_epochs"] == 10_048 * BYTES["postgres"]["log_epochs"]
    assert kept["epoch_copies"] == 2 * 10_048 * BYTES["postgres"]["epoch_copies"]
    assert kept["index"] == 10**6 * BYTES["postgres"]["index"]


def test_the_page_shows_the_table() -> None:
    found = (Path(__file__).resolve().parents[3] / "docs/evidence/scale.md").read_text("utf-8")
    assert page(found) == found, "run python -m benchmarks.growth"
