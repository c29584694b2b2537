"""An S3-compatible store as a target: the same promises as on a disk, by another server."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ops.archive.archiving import archive_epochs
from ops.archive.commits import create_table
from ops.archive.copying import recorded_plans
from ops.archive.plans import TARGETS_OPTION, dump_targets
from ops.archive.rollup import rollup
from ops.archive.verify import CopySource, read_copy
from ops.backfill.missing import audit_files, backfill, tidy
from ops.erase import erase
from ops.seal import log_epochs
from penstock.archive.format import DAYS
from penstock.archive.markers import MARKER, require_target
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from penstock.errors import ForeignTarget, TargetUnavailable
from tests.archive.logs import Log, Row, bring, read_by_tasks, states
from tests.archive.test_rollup import manifest_rows, yesterday
from tests.kit.erasing import BY_KEY, SECRET as ERASED, WHO, WHY, archived, secret_log
from tests.kit.proof import proves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of a store."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.archive.s3_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.communicate()


@pytest.fixture
def s3(endpoint: str, request: pytest.FixtureRequest) -> Target:
    """A target in a bucket of its own."""
    bucket = f"b{abs(hash(request.node.nodeid)) % 10**12}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT"))
    return target_of(endpoint, f"s3://{bucket}/archive")


def target_of(endpoint: str, uri: str, name: str = "cold") -> Target:
    """A target with our credentials."""
    options = {
        "aws_access_key_id": "AKIAIOSFODNN7EXAMPLE",
        "aws_secret_access_key": SECRET,
        "aws_region": "us-east-1",
        "aws_endpoint_url": endpoint,
        "allow_http": "true",
    }
    return Target(name, uri, tuple(options.items()))


def rows_of(log: Log, target: Target) -> list[Row]:
    """What any engine reads of the table, without the number of the log epoch and the day."""
    delta = ArchiveTable(target, log.known_as).delta(DAYS)
    assert delta is not None
    table = delta.to_pyarrow_table().drop_columns(["log_epoch", "sealed_date"])
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=lambda row: row[:2])


@proves("D9, D10 on an object store")
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_archive_verify_lose_and_backfill(spark: SparkSession, log: Log, s3: Target) -> None:
    """By Spark's tasks, which get the credentials by an option that no plan shows."""
    log.publish_odd()
    log.publish_many(60)
    log.seal(max_events=20)
    copies = archive_epochs(spark, log.url, log.topic, s3)
    assert all(copy.written for copy in copies)
    assert rows_of(log, s3) == manifest_rows(log, s3) == log.rows()
    frame = spark.read.format(CopySource.name()).option("plans", "[]")
    with redirect_stdout(io.StringIO()) as shown:
        frame.option(TARGETS_OPTION, dump_targets([s3])).load().explain("extended")
    assert "Physical Plan" in shown.getvalue()
    assert SECRET not in shown.getvalue()
    s3.store.delete(f"{s3.table_name(log.known_as, DAYS)}/{copies[0].location}")
    assert [each.damage for each in read_by_tasks(spark, log, s3)].count("") == (len(copies) - 1)
    assert len(audit_files(log.url, log.topic, s3)) == 1
    assert len(backfill(spark, log.url, log.topic, s3)) == 1
    assert rows_of(log, s3) == manifest_rows(log, s3) == log.rows()


@proves("D9, D10 on an object store")
def test_rollup_and_tidy(log: Log, s3: Target) -> None:
    log.publish_many(100)
    log.seal(max_events=10)
    yesterday(log)
    bring(log, s3, log_epochs(log.connection, log.topic))
    (made,) = rollup(log.url, log.topic, s3)
    assert made.replaced_files == 10
    assert len(tidy(log.url, log.topic, s3, hours=0)) == 10
    assert rows_of(log, s3) == manifest_rows(log, s3) == log.rows()
    assert audit_files(log.url, log.topic, s3) == []


def test_an_erasure_replaces_files(
    connection: psycopg.Connection[tuple[Any, ...]], database_url: str, endpoint: str, s3: Target
) -> None:
    """The file is deleted from the store, not only left out of the table."""
    log = secret_log(connection, database_url)
    log.seal(max_events=4)
    before = log.rows()
    bring(log, s3, log_epochs(connection, log.topic))
    assert secrets_in(endpoint, s3) == 6
    done = erase(log.url, BY_KEY, WHY, [s3])
    assert done.files > 0
    assert secrets_in(endpoint, s3) == 0
    rows = archived(log, s3)
    assert [row for row in rows if row[3] != WHO] == [row for row in before if row[3] != WHO]
    assert [row[7] for row in rows if row[3] == WHO] == [b""] * 6
    assert audit_files(log.url, log.topic, s3) == []


def secrets_in(endpoint: str, target: Target) -> int:
    """The rows with the secret in all files of the store, named by a commit or not."""
    bucket = f"{endpoint}/{target.uri.removeprefix('s3://').partition('/')[0]}"
    with urllib.request.urlopen(f"{bucket}?list-type=2") as listed:
        names = re.findall("<Key>([^<]*[.]parquet)</Key>", listed.read().decode())
    found: list[Any] = []
    for name in names:
        data = target.store.read(name.removeprefix("archive/"))
        assert data is not None, name
        file = pq.read_table(pa.BufferReader(data), columns=["payload"])
        found += file["payload"].to_pylist()
    assert found
    return sum(ERASED in each for each in found)


@proves("D9, D10 on an object store", guard="the conditional put")
def test_a_table_is_created_once(endpoint: str, s3: Target) -> None:
    """Guard: the conditional put of the first commit."""
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(lambda _: create_table(s3, "a/b//1"), range(4)))
    deltas = [table.delta(DAYS) for table in tables]
    made = {f"{each.metadata().id} {each.version()}" for each in deltas if each is not None}
    (one,) = made
    assert one.endswith(" 0")


@proves("D9, D10 on an object store", guard="the conditional put")
def test_the_marker_is_put_once(log: Log, s3: Target) -> None:
    """Guard: the conditional put; another name or installation is refused."""
    require_target(log.url, s3, write=True)
    assert not s3.store.put_new(MARKER, b"other")
    with pytest.raises(ForeignTarget):
        require_target(log.url, dataclasses.replace(s3, name="warm"), write=True)


@proves("D9, D10 on an object store")
def test_what_gives_no_answer_is_unavailable_and_loses_nothing(
    log: Log, s3: Target, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server, no bucket, another place: no copy is forgotten and no secret is told."""
    log.publish_odd()
    log.seal()
    bring(log, s3, log_epochs(log.connection, log.topic))
    monkeypatch.setattr("penstock.archive.stores._ATTEMPTS", 0)
    away = [
        target_of("http://127.0.0.1:9", s3.uri),
        target_of(endpoint, "s3://no-such-bucket/archive"),
        target_of(endpoint, f"{s3.uri}-moved"),
    ]
    for target in away:
        for verb in (audit_files, tidy, rollup):
            with pytest.raises(TargetUnavailable) as caught:
                verb(log.url, log.topic, target)
            assert SECRET not in f"{caught.value!r} {caught.value} {caught.value.hint}"
        with pytest.raises(TargetUnavailable):
            manifest_rows(log, target)
        with contextlib.suppress(TargetUnavailable):
            plans = recorded_plans(log.url, target, log_epochs(log.connection, log.topic))
            assert all(read_copy(plan, target).unavailable for plan in plans.values())
    assert set(states(log)) == {"verified"}
    assert SECRET not in repr(s3)
    assert audit_files(log.url, log.topic, s3) == []


@proves("D9, D10 on an object store")
def test_a_file_that_is_gone_is_missing(log: Log, s3: Target) -> None:
    """The store is there and says so: then it is no longer a copy."""
    log.publish_odd()
    log.seal()
    first, _ = bring(log, s3, log_epochs(log.connection, log.topic))
    s3.store.delete(f"{s3.table_name(log.known_as, DAYS)}/{first.location}")
    assert len(audit_files(log.url, log.topic, s3)) == 1
    assert states(log) == ["missing", "verified"]


def test_a_writer_that_fails_leaves_no_object(s3: Target) -> None:
    with pytest.raises(ValueError, match="stop"), s3.store.sink("a/b") as file:
        file.write(b"x" * 100)
        raise ValueError("stop")
    assert s3.store.size("a/b") is None
