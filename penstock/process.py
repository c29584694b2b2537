"""What every long-running program of Penstock does: signals that drain, and logs as JSON lines."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from types import FrameType
from typing import Any

from penstock.supervisor import Supervisor

EXIT_DRAINED = 0
EXIT_NOT_DRAINED = 1
EXIT_REFUSED = 2


def drain_on_signals(supervisor: Supervisor) -> None:
    """The first SIGTERM or SIGINT makes the supervisor's wait() return; a second one aborts."""
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if asked:
            os._exit(EXIT_NOT_DRAINED)
        asked.append(number)
        supervisor.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    _OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        """The record with what was given as ``extra``."""
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in self._OWN}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(level: str) -> None:
    """JSON lines on the standard error output."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
