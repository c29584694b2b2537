"""The archive's sink with fuses: its processes die by SIGKILL where a file says so, once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ops.archive.writer import ArchiveSink, ArchiveWriter, WrittenEpochs
from penstock.archive.copies import EpochKey
from penstock.archive.targets import Target
from tests.archive.stalled import vars_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

#: A task that has written its file; the commit of a job, before and after it.
PLACES = ("task", "before", "after")


def fuse(target: Target, place: str, key: EpochKey) -> Path:
    """The file that says that the process dies at this place of a log epoch."""
    return target.root.with_name("fuses") / f"{place}-{key[0]}-{key[1]}"


class FusedSink(ArchiveSink):
    """``penstock_fused``: a name of its own, because a session knows a name only once."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "penstock_fused"

    def writer(self, schema: StructType, overwrite: bool) -> FusedWriter:
        """The same writer, with fuses."""
        return FusedWriter(**vars_of(super().writer(schema, overwrite)))


class FusedWriter(ArchiveWriter):
    """Dies at its places."""

    def write(  # type: ignore[override] # as in the class itself
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WrittenEpochs:
        """In a task."""
        written = super().write(iterator)
        self._blow("task", (epoch.key for epoch in written.epochs))
        return written

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the process that commits for the driver."""
        self._blow("before", self._plans)
        super().commit(messages)
        self._blow("after", self._plans)

    def _blow(self, place: str, keys: Iterable[EpochKey]) -> None:
        for key in keys:
            path = fuse(self._target, place, key)
            if path.exists():
                path.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
