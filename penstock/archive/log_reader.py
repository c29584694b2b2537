"""One way to read a partition's whole history: hot from the database, cold from the archive."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from penstock import database
from penstock.archive.copies import Copy
from penstock.archive.copy_reader import read_copy
from penstock.archive.database_reader import read_hot
from penstock.archive.hot_or_cold import Segment, fetch_plan
from penstock.archive.targets import Target
from penstock.errors import (
    BelowLowSequence,
    CopyDamaged,
    EpochMissing,
    ForeignTarget,
    InvalidArgument,
    LogBehind,
    TargetUnavailable,
)
from penstock.log.positions import MAX_SEQUENCE, Lsn, sequence_of
from penstock.records import Event
from penstock.topics import validation

log = logging.getLogger(__name__)

#: So many plans in a row may fail before one event was read: each may name a log epoch that
#: retention drops, or a copy that is moved, before it is read.
_FRUITLESS_PLANS = 5


@dataclass(frozen=True, slots=True)
class CopyFailure:
    """A copy that could not be read; the reader went on with the next target."""

    target: str
    log_epoch: int
    sequence: int
    error: Exception


def read(
    url: str | None,
    topic: str,
    partition: int,
    lsn: Lsn | str | int = 1,
    max_events: int | None = None,
    *,
    targets: Iterable[Target] = (),
) -> LogReader:
    """The events of a partition from a position on, as Arrow batches in the order of the log.

    ``lsn`` is a position, its text, or a sequence.  Without ``max_events`` it reads to the end of
    the log.  A position beyond the end is no error: there is nothing to read yet.  ``targets`` are
    where cold events may be read, the preferred one first.
    """
    return LogReader(url, topic, partition, lsn, max_events, targets=targets)


def read_on(
    connection: Any,
    topic: str,
    partition: int,
    sequence: int,
    max_events: int | None,
    *,
    targets: Iterable[Target],
) -> LogReader:
    """The same on an open connection, which commits each statement by itself."""
    reader = LogReader(None, topic, partition, sequence, max_events, targets=targets)
    reader.connection = connection
    return reader


class LogReader(Iterator[pa.RecordBatch]):
    """Reads events of one partition.  It connects with the first batch; close it when done.

    ``next_sequence`` is where it goes on.  ``failures`` are the copies that could not be read.
    Each is also logged as a warning.
    """

    def __init__(
        self,
        url: str | None,
        topic: str,
        partition: int,
        lsn: Lsn | str | int,
        max_events: int | None,
        *,
        targets: Iterable[Target],
        from_database: bool = True,
    ) -> None:
        """Check what is wanted.  Nothing is opened.

        Without ``from_database`` it reads copies only, also of what the database still has.
        """
        self._from_database = from_database
        self.failures: list[CopyFailure] = []
        #: An open connection to read on, instead of one of its own.
        self.connection: Any = None
        self._url = url
        self._topic = validation.topic(topic)
        self._partition = partition
        self._lsn = _position(lsn)
        self.next_sequence = self._lsn.sequence
        self._left = MAX_SEQUENCE if max_events is None else max_events
        validation.fetched(partition, self.next_sequence, self._left)
        if not 1 <= self._left <= MAX_SEQUENCE:
            raise InvalidArgument(f"{max_events} events cannot be read", hint="read 1 or more")
        given = list(targets)
        self._targets = {target.name: target for target in given}
        if len(self._targets) < len(given):
            raise InvalidArgument(
                "two of the targets have the same name", hint="give each target once"
            )
        self._batches = self._read()

    def __iter__(self) -> LogReader:
        """The reader itself."""
        return self

    def __next__(self) -> pa.RecordBatch:
        """The next batch, with the columns of ``penstock.archive.format.TABLE_SCHEMA``."""
        return next(self._batches)

    def events(self) -> Iterator[Event]:
        """The same as events, one by one."""
        for batch in self:
            yield from events_of(self._topic, batch)

    def close(self) -> None:
        """Close the connection; nothing more is read."""
        self._batches.close()

    def __enter__(self) -> LogReader:
        """The reader itself, for ``with``."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _read(self) -> Generator[pa.RecordBatch, None, None]:
        with self._connected() as connection:
            if self._lsn.log_epoch:
                sequence_of(connection, self._topic, self._partition, self._lsn)
            fruitless = 0
            while self._left:
                begun = self.next_sequence
                plan = self._plan(connection)
                if not plan:
                    return
                try:
                    for segment in plan:
                        yield from self._segment(connection, segment)
                except _PlanIsOld as old:
                    fruitless = fruitless + 1 if self.next_sequence == begun else 0
                    if fruitless >= _FRUITLESS_PLANS:
                        raise old.error from None

    def _connected(self) -> AbstractContextManager[Any]:
        if self.connection is not None:
            return nullcontext(self.connection)
        return database.connect(self._url, application_name="penstock read")

    def _plan(self, connection: Any) -> list[Segment]:
        return fetch_plan(connection, self._topic, self._partition, self.next_sequence, self._left)

    def _segment(self, connection: Any, segment: Segment) -> Iterator[pa.RecordBatch]:
        if segment.first_sequence > self.next_sequence:
            raise EpochMissing(
                f"the sequences {self.next_sequence} to {segment.first_sequence - 1} of partition "
                f"{self._partition} of {self._topic} are neither in the database nor in any "
                f"log epoch",
                hint=f"they were removed and never archived: read from {segment.first_sequence} on",
            )
        last = min(segment.last_sequence, self.next_sequence + self._left - 1)
        if last < self.next_sequence:
            return
        batches = self._hot if segment.is_hot and self._from_database else self._cold
        yield from batches(connection, segment, last)

    def _hot(self, connection: Any, segment: Segment, last: int) -> Iterator[pa.RecordBatch]:
        found = read_hot(
            connection,
            self._topic,
            self._partition,
            log_epoch=segment.log_epoch or 0,
            first=self.next_sequence,
            last=last,
        )
        try:
            for batch in found:
                yield self._took(batch)
        except BelowLowSequence as error:
            # Retention has dropped it since it was planned: now it is cold.
            raise _PlanIsOld(error) from None
        if self.next_sequence <= last:
            behind = f"partition {self._partition} of {self._topic} ends before {last} now"
            raise _PlanIsOld(LogBehind(behind, hint="was the database restored meanwhile?"))

    def _cold(self, connection: Any, segment: Segment, last: int) -> Iterator[pa.RecordBatch]:
        for copy in self._readable(segment):
            try:
                for batch in read_copy(self._targets[copy.target], copy, self.next_sequence, last):
                    yield self._took(batch)
            except (TargetUnavailable, CopyDamaged, ForeignTarget) as error:
                self._failed(copy, error)
                if isinstance(error, CopyDamaged):
                    self._suspect(connection, copy, error)
            else:
                return
        missing = self._missing(segment)
        present = self._plan(connection)
        if present and present[0] != segment:
            # Its copies were moved or made again since it was planned, or it is hot again.
            raise _PlanIsOld(missing)
        raise missing

    def _readable(self, segment: Segment) -> list[Copy]:
        """Its copies on the given targets, in the order of the targets."""
        by_target = {copy.target: copy for copy in segment.copies}
        return [by_target[name] for name in self._targets if name in by_target]

    def _took(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Count a batch.  Whatever its source: no event comes twice, and none is left out."""
        found = batch.column("sequence")
        expected = self.next_sequence, self.next_sequence + batch.num_rows - 1
        if (found[0].as_py(), found[-1].as_py()) != expected or batch.num_rows > self._left:
            raise CopyDamaged(
                f"partition {self._partition} of {self._topic} was read from sequence "
                f"{found[0].as_py()} to {found[-1].as_py()}, not from {expected[0]} on",
                hint="read it from another target; backfill makes the copy again",
            )
        self.next_sequence += batch.num_rows
        self._left -= batch.num_rows
        return batch

    def _failed(self, copy: Copy, error: Exception) -> None:
        self.failures.append(CopyFailure(copy.target, copy.log_epoch, self.next_sequence, error))
        log.warning(
            "%s partition %s: log epoch %s cannot be read on %s from sequence %s on: %s",
            self._topic,
            self._partition,
            copy.log_epoch,
            copy.target,
            self.next_sequence,
            error,
        )

    def _suspect(self, connection: Any, copy: Copy, error: CopyDamaged) -> None:
        """Note that a copy is damaged, so that backfill reads it back and makes it again.

        It counts until then: what cannot be read here may be this machine's own mount.
        """
        binds = {"topic": self._topic, "partition": self._partition, "log_epoch": copy.log_epoch}
        try:
            database.call(
                connection, "suspect_copy", **binds, target=copy.target, reason=str(error)
            )
        except Exception as failure:  # a replica, or an older schema: reading does not depend on it
            log.warning("that it is damaged cannot be noted: %s", failure)

    def _missing(self, segment: Segment) -> EpochMissing:
        failed = {
            each.target: str(each.error)
            for each in self.failures
            if each.log_epoch == segment.log_epoch
        }
        recorded = [
            f"on {copy.target}: {failed.get(copy.target, 'a target that was not given')}"
            for copy in segment.copies
        ]
        recorded += [f"on {target}: recorded as missing" for target in segment.lost]
        return EpochMissing(
            f"log epoch {segment.log_epoch} of partition {self._partition} of {self._topic} "
            f"(sequences {segment.first_sequence} to {segment.last_sequence}) is no longer in the "
            f"database, and no copy of it can be read; "
            f"{'; '.join(recorded) or 'none was ever recorded'}",
            hint=f'give the targets that hold it; or: penstock backfill "{self._topic}" '
            f"--target NAME",
        )


class _PlanIsOld(Exception):
    """What was planned is no longer so."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def events_of(topic: str, batch: pa.RecordBatch) -> list[Event]:
    """The events of a batch."""
    columns = [batch.column(name).to_pylist() for name in ("partition", "history", *_OF_EVENTS)]
    found: list[Event] = []
    for (partition, history), rows in groupby(zip(*columns, strict=True), key=itemgetter(0, 1)):
        found += Event.from_rows(topic, partition, history, [row[2:] for row in rows])
    return found


#: The columns of an Event's row, in its order.
_OF_EVENTS = (
    "sequence", "event_id", "key", "type", "content_type", "headers", "payload", "created_at",
    "sequenced_at",
)  # fmt: skip


def _position(lsn: Lsn | str | int) -> Lsn:
    if isinstance(lsn, Lsn):
        return lsn
    return Lsn.parse(lsn) if isinstance(lsn, str) else Lsn(0, lsn)
