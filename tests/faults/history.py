"""Records what a process did, for a checker that knows nothing else of it.

One file for each process, one JSON object for each line: ``proc``, ``op``, ``st`` and the times.
``st`` is one of

- ``invoke``: it begins.  What ends without another record has an outcome that nobody knows;
- ``ok``, ``fail``: it was done, it was certainly not done;
- ``info``: nobody knows.

``t0`` and ``t`` are times of the machine's monotonic clock (begin of the operation, and now),
``d0`` and ``d`` the same by its real-time clock, which is the database's too: it runs on this
machine.  A record is in the kernel's hands before the next step is taken: SIGKILL loses none.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any


def real_time() -> float:
    """The clock that the database reads, whatever a test has done to ``time.time``."""
    return time.clock_gettime(time.CLOCK_REALTIME)


class Recorder:
    """The history of one process."""

    def __init__(self, folder: Path, proc: str) -> None:
        self.proc = proc
        self._lock = threading.Lock()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(folder / f"{proc}.{os.getpid()}.jsonl", flags, 0o644)

    def begun(self) -> dict[str, float]:
        """The times at which an operation begins, for its record."""
        return {"t0": time.monotonic(), "d0": real_time()}

    def write(self, op: str, st: str, **fields: Any) -> None:
        """One record."""
        record = {
            "proc": self.proc, "pid": os.getpid(), "op": op, "st": st,
            "t": time.monotonic(), "d": real_time(), **fields,
        }  # fmt: skip
        line = json.dumps(record, separators=(",", ":")) + "\n"
        with self._lock:
            os.write(self._file, line.encode())

    def close(self) -> None:
        """Nothing more comes."""
        os.close(self._file)
