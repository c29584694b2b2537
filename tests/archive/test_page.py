"""The code of docs/reference/archive.md, as it is on the page: every engine reads the same rows."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from ops.archive.rollup import rollup
from ops.seal import log_epochs
from penstock.archive.format import TABLE_SCHEMA
from penstock.archive.targets import Target
from tests.archive.logs import Log, bring, flip
from tests.archive.test_rollup import yesterday
from tests.kit.log import topic as create_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "archive.md"


def digest(table: pa.Table) -> tuple[int, str]:
    """How many rows there are, and a hash of all their values; whatever strings an engine has."""
    rows = table.select(TABLE_SCHEMA.names).cast(TABLE_SCHEMA).sort_by("sequence").to_pylist()
    return len(rows), hashlib.sha256(repr(rows).encode()).hexdigest()


def test_every_engine_reads_the_same_rows(
    spark: SparkSession,
    connection: psycopg.Connection[tuple[Any, ...]],
    database_url: str,
    tmp_path: Path,
) -> None:
    """Of a day that was rolled up, and of today; equal to the log."""
    create_topic(connection, 2, "bank/accounts")
    log = Log(connection, database_url, "bank/accounts")
    target = Target("local", str(tmp_path / "archive"))
    log.publish_odd()
    log.publish_many(100)
    log.seal(max_events=20)
    yesterday(log)
    bring(log, target, log_epochs(connection, log.topic))
    assert len(rollup(database_url, log.topic, target)) == 1
    log.publish_many(30)
    bring(log, target, log.seal(max_events=10))

    names: dict[str, Any] = {"url": database_url, "folder": target.uri, "spark": spark}
    found: dict[int, tuple[int, str]] = {}
    last = pa.table({})
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)):
        names.pop("rows", None)
        exec(compile(block, str(PAGE), "exec"), names)
        if "rows" in names:
            last = names["rows"]
            found[number] = digest(last)
    assert len(found) == 6
    expected = log.rows_of(0)
    assert set(found.values()) == {(len(expected), next(iter(found.values()))[1])}
    columns = [name for name in TABLE_SCHEMA.names if name != "log_epoch"]
    table = last.sort_by("sequence").select(columns)
    assert [tuple(row.values()) for row in table.to_pylist()] == expected
    assert sum(batch.num_rows for batch in names["batches"]) == names["first"].event_count
    for path in names["dataset"].files:
        flip(Path(target.table_path(log.known_as, 2), path))
    checked = names["checked"]
    with pytest.raises(OSError, match="page integrity"):
        names["dataset"].scanner(fragment_scan_options=checked).to_table()
