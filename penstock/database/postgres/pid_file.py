"""The file that a PostgreSQL server keeps in its data directory while it runs."""

from __future__ import annotations

import os
from pathlib import Path

_LINE_OF_PORT = 3


def running(data_directory: Path) -> tuple[int, int] | None:
    """Process id and port of the server; None when the file names no process that is there.

    The process may be another one by now, and the port another server's: ask the server.
    """
    try:
        lines = (data_directory / "postmaster.pid").read_text().splitlines()
        pid, port = abs(int(lines[0])), int(lines[_LINE_OF_PORT])
    except (OSError, ValueError, IndexError):
        return None
    return (pid, port) if _is_alive(pid) else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
