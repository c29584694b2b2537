"""Erasures: what is erased is nowhere any more, and everything else is as it was."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import penstock
from ops.archive import erasing
from ops.archive.rollup import rollup
from ops.erase import What, erase, list_erasures
from ops.seal import copies_of, log_epochs
from penstock import database
from penstock.archive.reading import read
from penstock.archive.targets import Target
from penstock.errors import (
    ErasureRefused,
    InvalidArgument,
    RetentionRefused,
    TargetUnavailable,
)
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.topics import holds
from tests.archive.logs import Log, bring
from tests.contract.databases import ContractDatabase
from tests.kit.copies import drop
from tests.kit.log import drain, topic

TOPIC = "bank/accounts"
SECRET = b"secret"
WHO = "anna@example.org"
BY_KEY = What(TOPIC, key=WHO)
WHY = "art. 17, case 4"


@pytest.fixture
def log(db: ContractDatabase) -> Log:
    """Three events of the key among ten of each of two partitions."""
    own = db.connect()
    topic(own, 2, TOPIC)
    publish_batch(
        own,
        [
            Message(
                TOPIC,
                b"%s %d" % (SECRET if n % 4 == 1 else b"plain", n),
                key=WHO if n % 4 == 1 else f"k{n}",
                type="t",
                headers={"n": n},
                partition=partition,
            )
            for partition in range(2)
            for n in range(10)
        ],
    )
    drain(own)
    return Log(own, db.url, TOPIC)


@pytest.fixture
def targets(tmp_path: Path) -> list[Target]:
    """Two of them."""
    return [Target(name, str(tmp_path / name)) for name in ("a", "b")]


def _rows_with_secret(target: Target) -> int:
    """In all files that lie there, named by a commit or not."""
    return sum(
        SECRET in payload
        for path in Path(target.uri).rglob("*.parquet")
        for payload in pq.read_table(path, columns=["payload"])["payload"].to_pylist()
    )


def _hash(rows: Sequence[Any]) -> str:
    return hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()


def _archived(log: Log, target: Target) -> list[Any]:
    """What `read` gives of a target alone, in the shape of the log's rows."""
    found = []
    for partition in range(2):
        last = max(
            each.last_sequence
            for each in log_epochs(log.connection, TOPIC)
            if each.partition == partition
        )
        with read(log.url, TOPIC, partition, 1, last, targets=[target]) as batches:
            for batch in batches:
                columns = (batch.column(name).to_pylist() for name in batch.schema.names[2:])
                found += [(partition, *row) for row in zip(*columns, strict=True)]
    return found


def _payloads(log: Log) -> list[bytes]:
    return [bytes(row[7]) for row in log.rows()]


def test_smoke(log: Log, targets: list[Target]) -> None:
    before = log.rows()
    sealed = log.seal(max_events=4)
    for target in targets:
        bring(log, target, sealed)
    done = erase(log.url, BY_KEY, WHY, targets)
    print(done)
    after = log.rows()
    assert len(after) == len(before)
    assert SECRET not in b"".join(_payloads(log))
    assert [_rows_with_secret(target) for target in targets] == [0, 0]
    assert {each.state for each in copies_of(log.connection, TOPIC)} == {"verified"}
