"""How the metadata grows with the log: arithmetic, with bytes a row that a real database has shown.

python -m benchmarks.growth writes the table of docs/evidence/scale.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from tools import made

#: Bytes a row with all indexes, after 20,000 rows; `index` is bytes an event in the index of the
#: log.  tests/contract/log/test_growth.py measures them.
BYTES: Mapping[str, Mapping[str, float]] = {
    "postgres": {"log_epochs": 363, "epoch_copies": 224, "index": 13.5},
    "mysql": {"log_epochs": 313, "epoch_copies": 343, "index": 9.8},
    "mariadb": {"log_epochs": 313, "epoch_copies": 343, "index": 9.8},
}
#: An archived event of 200 bytes that do not compress, with id, key, headers and times.
ARCHIVED_BYTES = 260
#: What a rollup makes of the small files of a day.
FILE_BYTES = 128 << 20
CHUNK_EVENTS = 1_000
EPOCHS_PER_COMMIT = 32


@dataclass(frozen=True, slots=True)
class Log:
    """A log, and the policy that it is kept by."""

    events: int
    partitions: int
    epoch_events: int = 100_000
    targets: int = 2
    #: How many of the newest events the database still has.
    hot_events: int = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Growth:
    """What there is by then: rows, files and bytes."""

    log_epochs: int
    epoch_copies: int
    chunks: int
    files: int
    rolled_up_files: int
    commits: int


def growth(log: Log) -> Growth:
    """The rows and files of a log whose keys are spread evenly."""
    each = ceil(log.events / log.partitions)
    epochs = log.partitions * ceil(each / log.epoch_events)
    hot = ceil(min(log.events, log.hot_events) / log.partitions)
    return Growth(
        log_epochs=epochs,
        epoch_copies=epochs * log.targets,
        # A partition keeps its newest chunk, also when all of it is in the archive.
        chunks=log.partitions * max(1, ceil(hot / CHUNK_EVENTS)),
        files=epochs * log.targets,
        rolled_up_files=log.targets * ceil(log.events * ARCHIVED_BYTES / FILE_BYTES),
        commits=log.targets * ceil(epochs / EPOCHS_PER_COMMIT),
    )


def stored(log: Log, engine: str) -> Mapping[str, float]:
    """Bytes in the database, by kind."""
    found, row = growth(log), BYTES[engine]
    return {
        "log_epochs": found.log_epochs * row["log_epochs"],
        "epoch_copies": found.epoch_copies * row["epoch_copies"],
        "index": min(log.events, log.hot_events) * row["index"],
    }


def lines() -> Iterator[str]:
    """The table, in Markdown.  One row shows that more partitions change little."""
    yield (
        "| events | partitions | in a log epoch | log epochs | copies | chunks | files | commits |"
        " manifest |"
    )
    yield "|---:" * 9 + "|"
    shown = [(power, 64, size) for power in (9, 10, 11, 12) for size in (100_000, 1_000_000)]
    for power, partitions, epoch_events in [*shown, (12, 1_024, 100_000)]:
        log = Log(10**power, partitions, epoch_events)
        found, kept = growth(log), stored(log, "postgres")
        manifest = kept["log_epochs"] + kept["epoch_copies"]
        yield (
            f"| 10^{power} | {partitions:,} | {epoch_events:,} | {found.log_epochs:,} |"
            f" {found.epoch_copies:,} | {found.chunks:,} | {found.rolled_up_files:,} |"
            f" {found.commits:,} | {_size(manifest)} |"
        )


def page(before: str) -> str:
    """The page of scale with the table as it is now."""
    return made.fill(before, {"growth": "\n".join(lines())})


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.3g} {unit}"
        count /= 1_000
    return f"{count:.3g} TB"


if __name__ == "__main__":
    sys.exit(made.main("benchmarks.growth", [made.Page("docs/evidence/scale.md", page)]))
