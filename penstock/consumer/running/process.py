"""What every long-running program of Penstock does: drain on signals, and log JSON lines."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from penstock.consumer.running.supervisor import Supervisor

EXIT_DRAINED = 0
EXIT_NOT_DRAINED = 1
EXIT_REFUSED = 2


def exit_text(code: int) -> str:
    """How a process has ended: its exit code, or the signal that has killed it."""
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"exit code {code}"


def abort() -> None:
    """End this process at once."""
    os._exit(EXIT_NOT_DRAINED)


def drain_on_signals(supervisor: Supervisor, again: Callable[[], None] = abort) -> None:
    """The first SIGTERM or SIGINT makes the supervisor's wait() return.  A second one aborts."""
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        (again if asked else supervisor.stop)()
        asked.append(number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def extra_of(record: logging.LogRecord) -> dict[str, Any]:
    """The ``extra`` of a log record."""
    return {name: value for name, value in vars(record).items() if name not in _OWN}


class TextLines(logging.Formatter):
    """One line of text a record, with its ``extra`` and with ``fields``."""

    def __init__(self, **fields: Any) -> None:
        told = "".join(f" {name}={value}" for name, value in fields.items())
        super().__init__(f"%(asctime)s %(levelname)s{told} %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The message, followed by ``name=value`` for each extra."""
        told = "".join(f" {name}={value}" for name, value in extra_of(record).items())
        return f"{super().formatMessage(record)}{told}"


class JsonLines(logging.Formatter):
    """One JSON object a line; ``fields`` are in each."""

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, with its ``extra``."""
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= self._fields | extra_of(record)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(level: str, form: str = "json", **fields: Any) -> None:
    """Log to standard error, as JSON lines or as text.  ``fields`` identify the process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(**fields) if form == "json" else TextLines(**fields))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
