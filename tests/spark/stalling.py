"""The data source with a place where it stands still or dies, for tests that kill it there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import CaseInsensitiveDict, WriterCommitMessage

from penstock.spark.options import WriteOptions, write_options
from penstock.spark.source import PenstockSource
from penstock.spark.writing import BatchWriter, Staged, StreamWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: Variables of the process: at which place of which micro-batch, and the file that says so.
PLACE, BATCH, MARKER = "STALL_PLACE", "STALL_BATCH", "STALL_MARKER"


class StallingWriter(StreamWriter):
    """Stands still before or after the commit of one micro-batch."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit, and wait to be killed."""
        here = batchId == int(os.environ[BATCH])
        if here and os.environ[PLACE] == "before":
            self._stand_still()
        super().commit(messages, batchId)
        if here and os.environ[PLACE] == "after":
            self._stand_still()

    def _stand_still(self) -> None:
        Path(os.environ[MARKER]).touch()
        time.sleep(600)


class StallingSource(PenstockSource):
    """In the place of the real one, under its name."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> StallingWriter:
        """A writer that stands still."""
        options = write_options(self.options, streaming=True)
        return StallingWriter(options, schema, overwrite=overwrite)


class DyingSource(PenstockSource):
    """``penstock_dying``: a task dies by SIGKILL while it writes, and its next attempt does not.

    Its own options are ``marker``, the file that says that it has died, and ``rows``: after so many
    rows of a batch it dies, or after all that there are.
    """

    @classmethod
    def name(cls) -> str:
        """Its own name, so that the real one stays registered."""
        return "penstock_dying"

    def writer(self, schema: StructType, overwrite: bool) -> DyingWriter:
        """A writer whose first task dies."""
        given = CaseInsensitiveDict(self.options)  # writeId is kept as writeid
        marker, rows = given.pop("marker"), int(given.pop("rows"))
        options = write_options(given)
        return DyingWriter(options, schema, overwrite=overwrite, marker=marker, rows=rows)


class DyingWriter(BatchWriter):
    """Dies once, when it has taken so many rows."""

    def __init__(
        self, options: WriteOptions, schema: StructType, *, overwrite: bool, marker: str, rows: int
    ) -> None:
        """The file that says that it has died already."""
        super().__init__(options, schema, overwrite=overwrite)
        self._marker = Path(marker)
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]
        """Stage, unless it is the first attempt of all."""
        return super().write(self._dying(iterator))

    def _dying(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in iterator:
            yield batch.slice(0, self._rows)
            with suppress(FileExistsError):
                self._marker.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch.slice(self._rows)
