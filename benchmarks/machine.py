"""The machine's own score: what a fixed loop takes, and a write that waits for the disk.

Both are measured by the clock.  So a machine that is busy with other work has a worse score than
the same machine when it is quiet.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from statistics import median

LOOPS, ROUNDS = 400_000, 7
FSYNCS = 200
#: How much longer the loop may take, or the disk, on a machine that counts as the same.  What a
#: disk takes varies more, also when nothing else is going on.
LOOP_FACTOR, FSYNC_FACTOR = 1.1, 1.5


@dataclass(frozen=True, slots=True)
class Score:
    """Milliseconds of the loop and of the write."""

    cores: int
    loop_ms: float
    fsync_ms: float

    def is_like(self, other: Score) -> bool:
        """Whether figures that were measured with the two scores can be compared."""
        return (
            self.cores == other.cores
            and within(LOOP_FACTOR, self.loop_ms, other.loop_ms)
            and within(FSYNC_FACTOR, self.fsync_ms, other.fsync_ms)
        )

    def or_slower(self, other: Score) -> Score:
        """The slower of two scores: other work may have come between them."""
        return Score(
            self.cores, max(self.loop_ms, other.loop_ms), max(self.fsync_ms, other.fsync_ms)
        )

    def __str__(self) -> str:
        return f"{self.cores} cores, loop {self.loop_ms:g} ms, fsync {self.fsync_ms:g} ms"


def score() -> Score:
    """The score of this machine, now."""
    loop = median(_loop_milliseconds() for _ in range(ROUNDS))
    return Score(os.cpu_count() or 1, round(loop, 2), round(fsync_milliseconds(), 3))


def within(factor: float, one: float, other: float) -> bool:
    """Whether neither of two numbers is more than ``factor`` times the other."""
    return max(one, other) <= factor * min(one, other)


def fsync_milliseconds() -> float:
    """The median of writing a page and waiting for the disk, where the servers write too."""
    spent = []
    with tempfile.TemporaryFile() as file:
        for _ in range(FSYNCS):
            begun = time.perf_counter()
            file.write(b"\0" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
            spent.append(1_000 * (time.perf_counter() - begun))
    return median(spent)


def _loop_milliseconds() -> float:
    begun = time.perf_counter()
    found = 0
    for number in range(LOOPS):
        found = found * 31 + number & 0xFFFF
    return 1_000 * (time.perf_counter() - begun)
