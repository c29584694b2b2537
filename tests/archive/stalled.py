"""A run of the archive that stops at a chosen place, to be killed there by the test.

``python -m tests.archive.stalled PLACE MARKER URL TOPIC TARGET`` with PLACE ``between_commits``
(all files written, one log epoch committed, the next not) or ``before_record`` (all committed,
nothing recorded).  It creates MARKER and waits for its end.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from ops.archive import archiving as archive, copying
from ops.archive.writer import ArchiveSink, ArchiveWriter
from ops.spark import local_session
from penstock.archive.targets import Target

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType


def stall(*_: Any, **__: Any) -> NoReturn:
    """Say that the place is reached, and stay there."""
    Path(os.environ["STALLED_MARKER"]).touch()
    threading.Event().wait()
    raise AssertionError("unreachable")


def replace(module: ModuleType | type, name: str, value: object) -> None:
    """Put something else in a module's place, in this process only."""
    setattr(module, name, value)


class StalledWriter(ArchiveWriter):
    """Stalls on the driver before it commits a log epoch of partition 1."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """The real commit, of partition 0 alone."""
        if any(partition for partition, _ in self._plans):
            stall()
        super().commit(messages)


class StalledSink(ArchiveSink):
    """The archive's sink with that writer."""

    def writer(self, schema: StructType, overwrite: bool) -> StalledWriter:
        """The same writer, but for its commit."""
        return StalledWriter(**vars_of(super().writer(schema, overwrite)))


def vars_of(writer: ArchiveWriter) -> dict[str, Any]:
    """The arguments that a writer was made with."""
    return {
        "target": writer._target,
        "installation": writer._installation,
        "known_as": writer._known_as,
        "plans": list(writer._plans.values()),
        "reader": writer._reader,
    }


def main() -> None:
    """Run the archive up to the place."""
    place, marker, url, topic, target = sys.argv[1:]
    os.environ["STALLED_MARKER"] = marker
    if place == "between_commits":
        replace(copying, "ArchiveSink", StalledSink)
        replace(copying, "EPOCHS_PER_JOB", 1)
    else:
        replace(copying, "_record", stall)
    archive.archive_epochs(local_session("stalled"), url, topic, Target("local", target))


if __name__ == "__main__":
    main()
