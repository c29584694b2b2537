"""A folder in memory for what tests write.

A clone of the template database is 700 files. On a disk where any process waits for fsync, each of
these files waits too, and a test of a tenth of a second takes half a second.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MEMORY = Path("/dev/shm")
#: The databases of a run of `make test`, Pulsar and the archives, with something to spare.
BYTES = 6 << 30


def folder() -> Path:
    """This checkout's folder.  It need not exist."""
    return MEMORY / f"penstock-{zlib.crc32(str(ROOT).encode()):08x}"


def has_room() -> bool:
    """Whether the place exists, programs in it may run, and enough memory is free."""
    try:
        found = os.statvfs(MEMORY)
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return False
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    may_run = not found.f_flag & os.ST_NOEXEC
    return may_run and min(found.f_bavail * found.f_frsize, available << 10) >= BYTES
