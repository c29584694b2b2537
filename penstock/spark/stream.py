"""Reading a stream: offsets, how much a micro-batch reads, and what a subscription learns of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock import database
from penstock.errors import InvalidArgument, LogBehind, TopicNotFound
from penstock.log.histories import history_starts
from penstock.log.restores import Seen, tell
from penstock.records import PartitionRange
from penstock.spark.batch import inputs, read_input
from penstock.spark.cold_ranges import Archive
from penstock.spark.columns import ReadColumns
from penstock.spark.decoding import Decoded
from penstock.spark.options import ReadOptions
from penstock.spark.planning import chosen_partitions, ranges_between, start_positions
from penstock.spark.ranges import shared
from penstock.subscriptions import stream
from penstock.topics.names import partition_ranges
from penstock.topics.partition_ids import id_of, topic_of

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.database import Connection

log = logging.getLogger(__name__)

_VERSION = 1

Offset = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic micro-batch by micro-batch.

    Spark calls everything but ``read`` on one object in one process of the driver.
    """

    def __init__(
        self,
        options: ReadOptions,
        columns: tuple[str, ...],
        clock: Callable[[], float] = time.monotonic,
        *,
        decoded: Decoded | None = None,
    ) -> None:
        """Keep what to read; nothing is opened here."""
        self._options = options
        self._wanted = ReadColumns(options.topic, columns, options.types)
        self._decoded = decoded
        self._clock = clock
        self._last_read = clock()
        #: With the trigger availableNow: where the log ended when the query began.
        self._target: dict[int, int] | None = None
        #: Where the subscription was at the last look.
        self._marks: dict[int, int] = {}
        #: Whether retention was told that this stream has no targets; an earlier one may have had.
        self._has_withdrawn = False
        self._has_warned = False

    def initialOffset(self) -> Offset:
        """Where a new query begins."""
        with closing(self._options.address.connect()) as connection:
            present = chosen_partitions(connection, self._options)
            return _offset(present, start_positions(connection, self._options, present))

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say; Spark passes it to latestOffset unless the trigger reads all."""
        pace = self._options.pace
        if pace.max_events is not None:
            return ReadMaxRows(pace.max_events)
        if pace.min_events is not None:
            return ReadMinRows(pace.min_events)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the log ends now; nothing after that is read."""
        present = self._look()
        self._target = {each.partition: each.high_watermark for each in present}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """How far the next micro-batch reads; ``start`` itself when it is to wait."""
        present = self._look()
        after = self._positions(start, present)
        self._warn_behind(after)
        if start["history"] != present[0].history:
            # Written down before anything is read.  Otherwise each micro-batch would begin with the
            # position of the lost history again.
            return _offset(present, after)
        lags = {each.partition: self._end(each) - after.get(each.partition, 0) for each in present}
        taken = self._taken(lags, limit)
        if not taken:
            return start
        self._last_read = self._clock()
        until = {each: after.get(each, 0) + taken.get(each, 0) for each in {*after, *taken}}
        return _offset(present, until)

    def reportLatestOffset(self) -> Offset:
        """Where the log ends, for the progress of the query."""
        present = self._look()
        return _offset(present, {each.partition: each.high_watermark for each in present})

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """What the tasks of a micro-batch read."""
        options = self._options
        with closing(options.address.connect()) as connection:
            present = chosen_partitions(connection, options)
            after, until = self._positions(start, present), self._positions(end, present)
            ranges = ranges_between(connection, options, present, after, until)
        return inputs(ranges, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of a task."""
        events = read_input(Archive.of(self._options), self._wanted, partition)
        return events if self._decoded is None else self._decoded.batches(events)

    def commit(self, end: Offset) -> None:
        """Copy Spark's progress into the subscription, so that retention sees it.

        Spark does not call this for the last micro-batch of availableNow.  The mark is then late,
        and the next run moves it: it never runs ahead.
        """
        if self._options.subscription is None:
            return
        leases: dict[str, Any] = {
            "subscription": self._options.subscription,
            "partition_ids": [id_of(end["topic_id"], int(each)) for each in end["p"]],
            "lease_epochs": [0] * len(end["p"]),  # nobody holds a lease of it
        }
        with closing(self._options.address.connect()) as connection:
            positions = list(end["p"].values())
            database.call(connection, "mark_low_water", **leases, positions=positions)
            if Archive.of(self._options).targets:
                database.call(connection, "note_archive_reads", **leases)

    def _look(self) -> list[PartitionRange]:
        with closing(self._options.address.connect()) as connection:
            if self._options.subscription is not None:
                self._marks = _marks(connection, self._options)
            present = chosen_partitions(connection, self._options)
            self._withdraw(connection, present)
            return present

    def _withdraw(self, connection: Connection, present: Sequence[PartitionRange]) -> None:
        """Let retention wait for this stream if it has no targets, whoever has read before it.

        A stream holds no lease, so no lease_epoch tells it from an earlier one.
        """
        is_told = self._has_withdrawn or self._options.subscription is None
        if is_told or Archive.of(self._options).targets:
            return
        database.call(
            connection, "withdraw_archive_reads", subscription=self._options.subscription,
            partition_ids=[each.partition_id for each in present],
        )  # fmt: skip
        self._has_withdrawn = True

    def _warn_behind(self, after: Mapping[int, int]) -> None:
        """Say once that the mark is ahead of this stream, which retention does not wait for then.

        Another stream has moved it, or this one has begun again with a new checkpoint.
        """
        ahead = [each for each in sorted(after) if self._marks.get(each, 0) > after[each]]
        if not ahead or self._has_warned:
            return
        self._has_warned = True
        log.warning(
            'The subscription "%s" is at sequence %s of partition %s, and this stream at %s:'
            " retention does not wait for this stream. Give each stream a subscription of its own;"
            " for a new checkpoint, move it back with penstock subscription seek.",
            self._options.subscription, self._marks[ahead[0]], ahead[0], after[ahead[0]],
        )  # fmt: skip

    def _end(self, present: PartitionRange) -> int:
        """Where the query ends in a partition, or the log does."""
        if self._target is None:
            return present.high_watermark
        return min(present.high_watermark, self._target.get(present.partition, 0))

    def _taken(self, lags: Mapping[int, int], limit: ReadLimit) -> dict[int, int]:
        """How many events of each partition the next micro-batch has."""
        total = sum(lag for lag in lags.values() if lag > 0)
        if isinstance(limit, ReadMaxRows):
            return {} if self._waits(total) else shared(limit.max_rows, lags)
        if isinstance(limit, ReadMinRows) and self._waits(total):
            return {}
        return shared(total, lags)

    def _waits(self, lag: int) -> bool:
        """Whether there is less than minEventsPerTrigger, and maxTriggerDelay is not over."""
        pace = self._options.pace
        if pace.min_events is None or lag >= pace.min_events or self._target is not None:
            return False
        return self._clock() - self._last_read < pace.max_delay_seconds

    def _positions(self, offset: Offset, present: list[PartitionRange]) -> dict[int, int]:
        """The positions of an offset, checked against the log; a new partition is at 0."""
        _require_ours(offset, present)
        found = {int(each): position for each, position in offset["p"].items()}
        if offset["history"] == present[0].history:
            self._require_log(found, present)
            return found
        if self._options.fail_on_history_change:
            raise LogBehind(
                f"the stream has read history {offset['history']}, the log is at history"
                f" {present[0].history}: a restore lost events that the stream may have read",
                hint="begin a new checkpoint, or go on with failOnHistoryChange=false",
            )
        with closing(self._options.address.connect()) as connection:
            starts = history_starts(connection, self._options.topic, offset["history"])
        return _lowered(found, starts, present)

    def _require_log(self, found: Mapping[int, int], present: list[PartitionRange]) -> None:
        """LogBehind when the log ends before what was read of the same history.

        A copy of the volume is restored like this.  Waiting until the log has grown to there would
        skip what it gets until then.  So the position is reported, which stops other readers too.
        """
        beyond = [each for each in present if found.get(each.partition, 0) > each.high_watermark]
        if not beyond:
            self._require_partitions(found, present)
            return
        seen = {each.partition_id: Seen(found[each.partition], each.history) for each in beyond}
        source = f"a stream of Spark ({self._options.topic})"
        with closing(self._options.address.connect()) as connection:
            tell(connection, seen, source, self._options.subscription)
        raise LogBehind(
            f"partition {beyond[0].partition} ends at sequence {beyond[0].high_watermark}, and the"
            f" stream has read {found[beyond[0].partition]} of the same history",
            hint="a restore lost commits: look at `penstock restore status`, then open the next"
            " history by `penstock restore reconcile`",
        )

    def _require_partitions(self, found: Mapping[int, int], present: list[PartitionRange]) -> None:
        """The same when partitions are gone of which it has read: their resize is lost too.

        When they came again, their events up to the old position would be skipped.
        """
        known = {each.partition for each in present}
        gone = {each for each in found.keys() - known if found[each]}
        if gone and self._options.partitions is not None:  # others may only not be asked for
            with closing(self._options.address.connect()) as connection:
                gone -= {
                    each.partition for each in partition_ranges(connection, self._options.topic)
                }
        if gone:
            raise LogBehind(
                f"the topic {self._options.topic} has no partition {min(gone)}, and the stream has"
                f" read {found[min(gone)]} events of it in the same history",
                hint="a restore lost commits, a resize among them: open the next history by"
                " `penstock restore reconcile` before the topic is resized again",
            )


def _marks(connection: Connection, options: ReadOptions) -> dict[int, int]:
    assert options.subscription is not None
    asked: Mapping[int, int | None] = stream.position(
        connection, options.subscription, options.topic
    )
    # A partition that the subscription does not read has no position.
    found = {each: done for each, done in asked.items() if done is not None}
    if not found:
        raise InvalidArgument(
            f'the subscription "{options.subscription}" does not read the topic {options.topic}',
            hint=f"penstock subscription create NAME --topic {options.topic} adds it",
        )
    return found


def _lowered(
    found: Mapping[int, int], starts: Mapping[int, int | None], present: list[PartitionRange]
) -> dict[int, int]:
    """Positions of an earlier history, none above the start of a later one.

    Where that is not known, the end of the log is the best bound.  A partition that the restored
    log lacks has lost its resize too, and has no position: it is new when it comes again.
    """
    ends = {each.partition: each.high_watermark for each in present}
    bounds = {each: ends.get(each) if start is None else start for each, start in starts.items()}
    lowered = {}
    for each in found.keys() & bounds.keys():
        bound = bounds[each]
        lowered[each] = found[each] if bound is None else min(found[each], bound)
    return lowered


def _offset(present: list[PartitionRange], positions: Mapping[int, int]) -> Offset:
    return {
        "v": _VERSION,
        "history": present[0].history,
        "topic_id": topic_of(present[0].partition_id),
        "p": {str(each): positions[each] for each in sorted(positions)},
    }


def _require_ours(offset: Offset, present: list[PartitionRange]) -> None:
    if offset.get("v") != _VERSION:
        raise InvalidArgument(
            f"the checkpoint has an offset of version {offset.get('v')!r}",
            hint="it was written by another program, or a newer Penstock; begin a new checkpoint",
        )
    if offset["topic_id"] != topic_of(present[0].partition_id):
        raise TopicNotFound(
            "the checkpoint was written for another topic than the one that has this address now",
            hint="begin a new checkpoint, or give the address that the topic has now",
        )
