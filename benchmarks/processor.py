"""Processor time, which says more than the clock on a machine that others use."""

from __future__ import annotations

from contextlib import suppress

import psutil


def processor_seconds(pid: int) -> float:
    """Of a process, its children, and those of them that have ended."""
    return _seconds(psutil.Process(pid))


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    own: float = times.user + times.system + times.children_user + times.children_system
    for child in process.children():
        with suppress(psutil.NoSuchProcess):  # then its parent has its times
            own += _seconds(child)
    return own
