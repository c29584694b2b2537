"""Processor time.  On a machine with other load it says more than the clock."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil


def processor_seconds(pid: int) -> float:
    """The processor time of a process and its children, also of those that have ended."""
    return _seconds(psutil.Process(pid))


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    own: float = times.user + times.system + times.children_user + times.children_system
    for child in process.children():
        with suppress(psutil.NoSuchProcess):  # then its time is in its parent's
            own += _seconds(child)
    return own


def session_seconds(connection: Any) -> float:
    """The processor time of PostgreSQL's process for a session (Linux)."""
    pid = connection.info.backend_pid
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
