"""A folder in memory for what tests write.

A clone of the template database is 700 files. On a disk where any process waits for fsync, each of
these files waits too, and a test of a tenth of a second takes half a second.
"""

from __future__ import annotations

import os
import shutil
import zlib
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MEMORY = Path("/dev/shm")
#: The databases of a run of `make test`, Pulsar and the archives, with something to spare.
BYTES = 6 << 30
_CHECKOUT = "checkout"


def folder() -> Path:
    """This checkout's folder.  It need not exist."""
    return MEMORY / f"penstock-{zlib.crc32(str(ROOT).encode()):08x}"


def make() -> None:
    """Make the folder, and remove those of checkouts that are gone: what lies here takes memory."""
    folder().mkdir(exist_ok=True)
    (folder() / _CHECKOUT).write_text(str(ROOT))
    for name in MEMORY.glob(f"penstock-*/{_CHECKOUT}"):
        with suppress(FileNotFoundError):  # another process of the run was faster
            if not Path(name.read_text()).exists():
                shutil.rmtree(name.parent, ignore_errors=True)


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
