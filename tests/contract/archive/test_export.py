"""A topic as files: hot and cold as one, each event once, and no file that is not whole."""

from __future__ import annotations

import base64
import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ops.seal import seal
from penstock import archive, database
from penstock.archive import export
from penstock.archive.export import Exported, export_topic
from penstock.archive.targets import Target
from penstock.errors import (
    ConfigurationError,
    EpochMissing,
    InvalidArgument,
    NoDiskSpace,
    TopicNotFound,
)
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from tests import command
from tests.contract.databases import ContractDatabase
from tests.kit.copies import copy_all, drop
from tests.kit.log import drain, topic
from tests.kit.stream import STREAM

BINARY = b"\xff\x00"


def _published(own: Any, target: Target) -> None:
    """Two partitions: the first five events of each are in the archive only."""
    topic(own, 2, STREAM)
    for first in (1, 6):
        publish_batch(own, [
            Message(STREAM, BINARY if number == 3 else f"№ {number}".encode(), key="k",
                    type="order.paid", headers={"n": str(number)}, partition=partition)
            for number in range(first, first + 5)
            for partition in range(2)
        ])  # fmt: skip
        drain(own)
        if first == 1:
            seal(own, STREAM, max_events=5, max_age_seconds=None)
            copy_all(own, STREAM, target)
            drop(own, STREAM, [target])
    assert dict(database.call(own, "low_sequences", topic=STREAM)) == {0: 6, 1: 6}


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """An archive target."""
    return Target("one", str(tmp_path / "archive"))


def test_json_lines_have_everything(db: ContractDatabase, tmp_path: Path, target: Target) -> None:
    own = db.connect()
    _published(own, target)
    folder = tmp_path / "out"
    done = list(export_topic(own, STREAM, folder, targets=[target]))
    assert done == [Exported(each, 1, 10, 10, str(folder / f"{each}.jsonl")) for each in (0, 1)]
    for partition in (0, 1):
        with archive.read(db.url, STREAM, partition, targets=[target]) as reader:
            events = list(reader.events())
        lines = (folder / f"{partition}.jsonl").read_text("utf-8").splitlines()
        found = [json.loads(each) for each in lines]
        assert [each["sequence"] for each in found] == list(range(1, 11))
        for event, line in zip(events, found, strict=True):
            payload = line.get("payload", "").encode() or base64.b64decode(line["payload_base64"])
            assert (payload, line["headers"]) == (event.payload, event.headers)
            assert (line["event_id"], line["type"]) == (str(event.event_id), event.type)
            assert line["created_at"] == event.created_at.isoformat()
    assert not list(folder.glob("*.unfinished"))


def test_parquet_has_everything(db: ContractDatabase, tmp_path: Path, target: Target) -> None:
    own = db.connect()
    _published(own, target)
    list(export_topic(own, STREAM, tmp_path / "out", "parquet", targets=[target]))
    file = pq.ParquetFile(tmp_path / "out" / "1.parquet")
    table = file.read()
    assert table["sequence"].to_pylist() == list(range(1, 11))
    assert table["payload"].to_pylist()[2:4] == [BINARY, "№ 4".encode()]
    assert (file.metadata.metadata or {})[b"penstock.topic"].decode() == STREAM


def test_what_nobody_has_is_an_error_and_leaves_no_file(
    db: ContractDatabase, tmp_path: Path, target: Target
) -> None:
    """Guard: the name that a file gets at the end."""
    own = db.connect()
    _published(own, target)
    with pytest.raises(EpochMissing):
        list(export_topic(own, STREAM, tmp_path / "out"))
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["0.jsonl.unfinished"]
    assert [each.events for each in export_topic(own, STREAM, tmp_path / "new", first_sequence=6)]\
        == [5, 5]  # fmt: skip


def test_a_file_that_is_there_is_not_written_over(
    db: ContractDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    own = db.connect()
    topic(own, 1, STREAM)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    words = ("export", STREAM, str(tmp_path / "out"), "--output=json")
    assert [each["events"] for each in command.run(capsys, *words).rows] == [0]
    assert "is there already" in command.run(capsys, *words).err
    with pytest.raises(InvalidArgument, match="no format"):
        list(export.export_topic(own, STREAM, tmp_path, "xml"))


def test_nothing_is_written_before_a_refusal(
    db: ContractDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is not there, a file of a later partition, a folder that cannot be one."""
    own = db.connect()
    topic(own, 2, STREAM)
    out = tmp_path / "out"
    with pytest.raises(TopicNotFound):
        list(export_topic(own, "tests/nowhere", out))
    assert not out.exists()
    out.mkdir()
    (out / "1.jsonl").touch()
    with pytest.raises(InvalidArgument, match=r"1\.jsonl is there already"):
        list(export_topic(own, STREAM, out))
    assert [each.name for each in out.iterdir()] == ["1.jsonl"]
    with pytest.raises(ConfigurationError, match="cannot be written: File exists"):
        list(export_topic(own, STREAM, out / "1.jsonl"))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NoDiskSpace, match=r"0\.jsonl cannot be written: No space left"):
        list(export_topic(own, STREAM, tmp_path / "full"))
    assert [each.name for each in (tmp_path / "full").iterdir()] == ["0.jsonl.unfinished"]
