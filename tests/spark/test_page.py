"""The Python blocks of both pages spark.md run as they stand there, one after the other."""

from __future__ import annotations

import re
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from ops.seal import seal
from penstock.archive.targets import Target
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.spark import options
from penstock.subscriptions import stream
from penstock.topics import names as topics
from tests.contract.databases import ContractDatabase
from tests.kit.copies import copy_all, drop
from tests.kit.log import drain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "spark.md"
USERS = PAGE.parents[1] / "spark.md"
TOPIC = "shop/orders"


def test_every_option_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    known = {*options.READ_NAMES, *options.WRITE_NAMES}
    assert {name for name in known if f"`{name}`" not in text} == set()


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.long_on("mysql", "mariadb")
def test_every_block_runs(
    spark: SparkSession, db: ContractDatabase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 6
    archive = Target("nearby", str(tmp_path / "archive"))
    names: dict[str, Any] = {
        "spark": spark, "url": db.url, "folder": tmp_path, "archive_folder": archive.uri,
    }  # fmt: skip
    with closing(db.connect()) as own:
        topics.create_topic(own, TOPIC, 2, create_namespaces=True)
        stream.subscribe(own, "lake", [TOPIC])
        orders = [
            Message(TOPIC, b'{"order": %d}' % n, key=f"k{n}", type="order-placed")
            for n in range(60)
        ]
        publish_batch(own, orders)
        topics.create_topic(own, "shop/payments", 1)
        publish_batch(own, [Message("shop/payments", b"\x0e\x00\x02", key="k7")])
        drain(own)
        seal(own, TOPIC, max_events=10, max_age_seconds=0)
        copy_all(own, TOPIC, archive)
        for block in re.findall(r"```python\n(.*?)```", USERS.read_text("utf-8"), re.DOTALL):
            exec(compile(block, USERS.name, "exec"), names)
        assert names["placed"].count() == 60
        for number, block in enumerate(blocks):
            exec(compile(block, PAGE.name, "exec"), names)
            if "subscription" in block:
                assert names["spring"].count() == 60
                assert [(each.field, each.kind, each.events) for each in names["drift"]] == [
                    ("customer", "missing", 60)
                ]
                stream.unsubscribe(own, "lake")
                paid = names["payments"].selectExpr("key", "value.*").toArrow().to_pylist()
                at = datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
                assert paid == [{"key": "k7", "order": 7, "note": None, "paid_at": at}]
                drop(own, TOPIC, [archive])
                exec(compile(blocks[1], PAGE.name, "exec"), names)
                assert (number, names["whole"].count()) == (4, 60)
        drain(own)
        written = [event for part in range(2) for event in _from(own, part)]
    assert len(written) == 1_000
    assert spark.read.parquet(str(tmp_path / "orders")).count() == 60
    assert "order-placed" in capsys.readouterr().out


def _from(own: Any, partition: int) -> list[Any]:
    """What was published after the archive's events."""
    low = topics.partition_ranges(own, TOPIC)[partition].low_sequence
    return penstock.fetch(own, TOPIC, partition, low, 10_000)
