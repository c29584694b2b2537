"""Writing: tasks stage events, and one transaction of the driver publishes them exactly once.

The position of a row in its task is not the same when the task is repeated, so it is no identity.
What is published are the stages of the attempts that Spark names, under a version that only one
transaction can claim.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.errors import InvalidArgument, WriteDiffers
from penstock.publishing import staging, tables
from penstock.publishing.staging import Stage
from penstock.records import Message
from penstock.spark.options import WriteOptions

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: The columns that a data frame to write may have, and their types; payload has to be there.
_TYPES = {
    "payload": "binary",
    "key": "string",
    "type": "string",
    "content_type": "string",
    "headers": "string",
    "event_id": "string",
    "partition": "int",
    "not_before": "timestamp_ltz",
}
#: The properties of a stream's task that say which query it belongs to.
_QUERY_ID = "sql.streaming.queryId"
#: How long one statement of the commit may take: it publishes all that one task has staged.
_COMMIT_SECONDS = 3_600


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What one attempt of a task has staged; ``query_id`` is that of a stream's query."""

    stage: Stage
    query_id: str | None


Messages = Sequence[WriterCommitMessage | None]


class _Writer:
    """What both kinds of writers share."""

    #: What to do when a version was published before with other rows.
    _differs: ClassVar[str]

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        """Refuse a data frame that cannot be written, before a job runs."""
        if overwrite:
            raise InvalidArgument(
                "a log cannot be overwritten", hint='write with mode("append"), or as a stream'
            )
        _require_columns(schema, options.topic_column)
        self._options = options

    def _stage(self, batches: Iterator[pa.RecordBatch], query_id: str | None) -> Staged:
        with closing(self._options.address.connect()) as connection:
            return Staged(staging.stage(connection, _messages(batches, self._options)), query_id)

    def _publish(self, messages: Messages, writer: str, version: int) -> None:
        try:
            with closing(self._connect()) as connection:
                staging.publish_staged(connection, writer, version, _stages(messages))
                connection.commit()
        except WriteDiffers as error:
            if self._options.fail_on_different_rows:
                raise WriteDiffers(error.message, hint=self._differs) from None
            log.warning("%s; these are left out, as failOnDifferentRows says", error.message)
            self._discard(messages)

    def _discard(self, messages: Messages) -> None:
        with closing(self._connect()) as connection:
            staging.discard(connection, _stages(messages))
            connection.commit()

    def _connect(self) -> Any:
        return self._options.address.connect(autocommit=False, seconds=_COMMIT_SECONDS)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a data frame.  Spark sends this object to the tasks and back to commit."""

    _differs = "write other rows with the next writeVersion, or under another writeId"

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        """Without writeId, each write is one of its own."""
        super().__init__(options, schema, overwrite=overwrite)
        self._write_id = options.write_id or str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]
        """Stage the rows of a task."""
        return self._stage(iterator, None)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks have staged, unless this version was published before."""
        self._publish(messages, self._write_id, self._options.write_version)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what the tasks have staged."""
        self._discard(messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query.

    The object that commits is not the one that wrote, and only it knows the number of the
    micro-batch.  The query is known to the tasks, so they say it in their messages.
    """

    _differs = (
        "an older copy of the checkpoint was put back, or the query makes other rows each time it"
        " runs: begin a new checkpoint after what was published, or let failOnDifferentRows=false"
        " leave these rows out"
    )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]
        """Stage the rows of a task."""
        context = TaskContext.get()
        query_id = context.getLocalProperty(_QUERY_ID) if context else None
        if not query_id:
            raise InvalidArgument(
                "the task does not say which query it belongs to",
                hint="write with writeStream, or pass a batch to write.format in foreachBatch",
            )
        return self._stage(iterator, query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish a micro-batch, unless an earlier run of it was published before."""
        query_ids = {each.query_id for each in messages if isinstance(each, Staged)}
        for query_id in query_ids:
            self._publish(messages, f"spark query {query_id}", batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what the tasks of a micro-batch have staged."""
        self._discard(messages)


def _stages(messages: Messages) -> list[Stage]:
    """In the order of the tasks; a task that failed has no message."""
    return [each.stage for each in messages if isinstance(each, Staged)]


def _require_columns(schema: StructType, topic_column: str | None) -> None:
    own = {topic_column: "string"} if topic_column else {}
    names = schema.fieldNames()
    if len(set(names)) < len(names):
        raise InvalidArgument("two columns of the data frame have one name", hint="rename one")
    tables.require_columns(
        "data frame",
        {field.name: _named(field.dataType.simpleString()) for field in schema.fields},
        {name: [kind] for name, kind in {**_TYPES, **own}.items()},
        ["payload", *own],
    )


def _named(kind: str) -> str:
    """A type as a cast takes it: spark.sql.timestampType makes "timestamp" one without a zone."""
    return "timestamp_ltz" if kind == "timestamp" else kind


def _messages(batches: Iterator[pa.RecordBatch], options: WriteOptions) -> Iterator[Message]:
    for batch in batches:
        for row in _rows(batch):
            topic: Any = row.pop(options.topic_column) if options.topic_column else options.topic
            yield tables.message(topic, row)


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return batch.to_pylist()
    except (ValueError, OverflowError):
        raise InvalidArgument(
            "a not_before of the data frame is no time that Python knows",
            hint="use years from 1 to 9999",
        ) from None
