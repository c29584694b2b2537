"""``python -m penstock.upkeep.child FD``: a process of a daemon or a worker, which starts it."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
from typing import Any

from penstock.consumer.running.process import drain_on_signals, log_to_stderr
from penstock.consumer.running.supervisor import Supervisor
from penstock.errors import PenstockError, UsageError, error_text
from penstock.upkeep import operations, service
from penstock.upkeep.processes import MORE_DRAIN_SECONDS, Line, ProcessWork
from penstock.upkeep.state import Calls, figures_of


def main() -> int:
    """Run what the program asks for, until it asks this process to drain or has died."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    line = Line(socket.socket(fileno=descriptor))
    given = line.receive()
    work = ProcessWork(**given["work"])
    log_to_stderr(work.log_level, work.log_format, process=given["number"])
    try:
        drained = _run(work, given["number"], line)
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


def _run(work: ProcessWork, number: int, line: Line) -> bool:
    if work.pace is not None:
        service.set_pace(work.pace)
    operations.record()
    calls = Calls()
    module, _, function = work.build.partition(":")
    workers = getattr(importlib.import_module(module), function)(work.given, number, calls)
    supervisor = Supervisor(workers, stuck_after_seconds=work.stuck_seconds)
    # A second one aborts the program, which then kills this process.
    drain_on_signals(supervisor, again=supervisor.stop)
    asked = threading.Thread(
        target=_listen, args=(line, supervisor, calls), name="line", daemon=True
    )
    asked.start()
    supervisor.start()
    line.send({"started": True})
    return service.wait_and_drain(supervisor, work.drain_seconds, MORE_DRAIN_SECONDS)


def _listen(line: Line, supervisor: Supervisor, calls: Calls) -> None:
    """Answer the program's questions.

    A message to drain and the program's end have the same effect.
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
