"""Who archives while all is under attack: Spark's driver, and who cleans after it.

Before anything is dropped the cleaner has written every column of it down, in a book of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ops.archive.read_back import plain_reader
from ops.retention.clean import begin, drop, drop_slices
from ops.retention.guard import read_back
from ops.seal import seal
from penstock import database
from penstock.archive.targets import Target
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from tests.faults.history import Recorder

#: Small, so that there are many jobs to be killed in.
EPOCHS_PER_JOB = 8
TARGET = "disk"
_PAGE = 1_000

#: What the log has of an event, in the archive's order and without its log epoch.
Kept = tuple[Any, ...]


def target_of(folder: str | Path) -> Target:
    """The archive of a run."""
    return Target(TARGET, str(Path(folder) / "archive"))


def archive_on(given: argparse.Namespace, recorder: Recorder, stop: threading.Event) -> None:
    """Seal and archive, round upon round; what was committed twice or too early is seen later."""
    # Imported here: the other processes of a run do without Spark.
    from ops.archive import copying, manifest
    from ops.archive.archiving import archive_epochs
    from ops.spark import local_session
    from tests.archive.fuses import FusedSink
    from tests.archive.stalled import replace

    replace(copying, "ArchiveSink", FusedSink)
    replace(copying, "EPOCHS_PER_JOB", EPOCHS_PER_JOB)
    record = manifest.record

    def recorded(connection: Any, topic: str, copy: Any) -> None:
        record(connection, topic, copy)
        recorder.write("copy", "ok", partition=copy.partition, log_epoch=copy.log_epoch)

    replace(manifest, "record", recorded)
    spark = local_session("penstock archiver")
    while not stop.wait(given.pause):
        recorder.write("archive", "invoke")
        try:
            with contextlib.closing(database.connect(given.url)) as own:
                seal(own, given.topic, max_events=given.batch)
            archive_epochs(spark, given.url, given.topic, target_of(given.history))
            recorder.write("archive", "ok")
        except Exception as error:
            recorder.write("archive", "fail", error=f"{type(error).__name__}: {error}"[:300])
    spark.stop()


def clean_behind(given: argparse.Namespace, recorder: Recorder, stop: threading.Event) -> None:
    """Drop what has a whole copy, round upon round, when it is in the book."""
    with Book(Path(given.history), recorder) as book:
        while not stop.wait(given.pause):
            try:
                _round(given, recorder, book)
            except Exception as error:
                recorder.write("trouble", "ok", error=f"{type(error).__name__}: {error}"[:300])


def _round(given: argparse.Namespace, recorder: Recorder, book: Book) -> None:
    begun = begin(given.url, given.topic)
    with contextlib.closing(database.connect(given.url)) as own:
        book.keep(own, given.topic)  # all that is due is sealed by now
    done = read_back(
        given.url, begun.run, begun.due, [target_of(given.history)], plain_reader(given.url)
    )  # fmt: skip
    for each in done.damaged:
        recorder.write("damaged", "ok", what=str(each))
    for partition in drop(given.url, given.topic, begun.run):
        if partition.low_sequence > partition.old_low_sequence:
            where = {"partition": partition.partition, "low": partition.low_sequence}
            recorder.write("lowered", "ok", **where)
    for dropped in drop_slices(given.url):
        recorder.write("slice", "ok", slice=dropped.slice, state=str(dropped.state))


class Book:
    """What the log had, page by page; whoever begins it anew writes what is left once more."""

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        self._file = (folder / f"{recorder.proc}.{os.getpid()}.book").open("ab")
        self._next: dict[int, int] = {}

    def __enter__(self) -> Book:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def keep(self, connection: Any, topic: str) -> None:
        """Everything up to now."""
        for partition, low in database.call(connection, "low_sequences", topic=topic):
            first = self._next.get(partition, low)
            while page := rows_of(connection, topic, partition, first):
                pickle.dump(page, self._file)
                self._file.flush()
                first = page[-1][1] + 1
            self._next[partition] = first


def rows_of(connection: Any, topic: str, partition: int, first: int) -> list[Kept]:
    """A page of the log; event id and headers as the text that the database has for them."""
    found = database.call(
        connection, "archive_fetch", topic=topic, partition=partition, from_sequence=first,
        max_events=_PAGE,
    )  # fmt: skip
    return [
        (
            partition, sequence, str(event_id), key, kind, content_type, headers, bytes(payload),
            _with_zone(created_at), _with_zone(sequenced_at), history,
        )
        for sequence, event_id, key, kind, content_type, headers, payload, created_at,
        sequenced_at, history, *_ in found
    ]  # fmt: skip


def _with_zone(at: dt.datetime) -> dt.datetime:
    return (at if at.tzinfo else at.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)


def read_books(folder: Path) -> Iterator[Kept]:
    """All that any of them has; one whose writer was killed ends within a page."""
    for file in sorted(folder.glob("*.book")):
        with file.open("rb") as pages, contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                yield from pickle.load(pages)


def publish_odd_on(given: argparse.Namespace, recorder: Recorder, stop: threading.Event) -> None:
    """Publish what tends to be changed on the way, over lost connections."""
    number = 0
    while not stop.is_set():
        with (
            contextlib.suppress(Exception),
            contextlib.closing(database.connect(given.url, autocommit=False)) as connection,
        ):
            while not stop.wait(given.pause):
                number += 1
                tx = f"{given.name}-{os.getpid()}-{number}"
                _publish_odd(connection, given.topic, recorder, tx)
        stop.wait(0.1)


def _publish_odd(connection: Any, topic: str, recorder: Recorder, tx: str) -> None:
    from tests.archive.logs import ODD_EVENTS

    events = [f"{tx}/{number}" for number in range(len(ODD_EVENTS))]
    recorder.write("publish", "invoke", tx=tx)
    outcome = "fail"
    try:
        publish_batch(
            connection,
            [
                Message(
                    topic, f"{label} ".encode() + payload, key=key, type=kind,
                    content_type=content_type, headers=headers,
                )
                for label, (key, kind, content_type, headers, payload) in zip(
                    events, ODD_EVENTS, strict=True
                )
            ],
        )  # fmt: skip
        recorder.write("stage", "ok", tx=tx, events=events, undone=[])
        outcome = "info"
        connection.commit()
        outcome = "ok"
    finally:
        recorder.write("publish", outcome, tx=tx)
