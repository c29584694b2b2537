"""``python -m consumers.child FD``: one of a daemon's several processes.  The daemon starts it."""

from __future__ import annotations

import os
import socket
import sys
import threading
from typing import Any

from consumers import daemon
from consumers.processes import Line
from consumers.settings import Settings
from penstock.consumer.running.process import drain_on_signals, log_to_stderr
from penstock.consumer.running.supervisor import Supervisor
from penstock.errors import PenstockError, UsageError, error_text
from penstock.upkeep import operations, service
from penstock.upkeep.state import Calls, figures_of


def main() -> int:
    """Run what the daemon asks for, until it asks this process to drain or has died."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    line = Line(socket.socket(fileno=descriptor))
    given = line.receive()
    settings = Settings.from_json(given["settings"])
    log_to_stderr(settings.log_level, settings.log_format, process=given["number"])
    try:
        drained = _run(settings, given["number"], line)
    except Exception as error:
        line.send(
            {
                "ended": getattr(error, "message", "") or error_text(error),
                "hint": error.hint if isinstance(error, PenstockError) else "",
                "usage": isinstance(error, UsageError),
            }
        )
        return 2
    return 0 if drained else 1


def _run(settings: Settings, number: int, line: Line) -> bool:
    service.set_pace(settings.reconnects_per_second / (settings.processes + 1))
    operations.record()
    calls = Calls()
    workers = daemon.build_workers(settings, calls, number)
    supervisor = Supervisor(workers, stuck_after_seconds=settings.stuck_seconds)
    # A second one aborts the daemon, which then kills this process.
    drain_on_signals(supervisor, again=supervisor.stop)
    asked = threading.Thread(
        target=_listen, args=(line, supervisor, calls), name="line", daemon=True
    )
    asked.start()
    supervisor.start()
    line.send({"started": True})
    return service.wait_and_drain(supervisor, settings.drain_seconds, daemon.MORE_DRAIN_SECONDS)


def _listen(line: Line, supervisor: Supervisor, calls: Calls) -> None:
    """Answer the daemon's questions.

    A message to drain and the daemon's end have the same effect.
    """
    try:
        while True:
            message: Any = line.receive()
            if "drain" in message:
                supervisor.stop()
            else:
                found = figures_of(supervisor, calls)
                figures = [[name, label, value] for (name, label), value in found.items()]
                line.send({"stuck": supervisor.stuck(), "figures": figures})
    except (EOFError, OSError):
        supervisor.stop()


if __name__ == "__main__":
    sys.exit(main())
