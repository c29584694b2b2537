"""A process that runs handlers, seen from the program that keeps it: daemon or worker.

A handler that crashes its process does not end the program then: another process is started.  The
two talk over a socket pair, one JSON object a line: first what to run, then questions and
answers, at the end why the process exits. When one of them dies, in whatever way, its end of the
socket closes, so the other one always notices.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.consumer.running.process import abort, exit_text
from penstock.consumer.running.supervisor import ProcessEnded
from penstock.errors import PenstockError, UsageError
from penstock.upkeep.metrics import Figures, add_up, only_counters
from penstock.upkeep.settings import ServiceSettings

ASK_SECONDS = 2.0
#: How often the thread of a process checks whether it should drain.
LOOK_SECONDS = 0.2
#: How long a process may exceed its own limit for draining before it is killed.
KILLED_AFTER_SECONDS = 3.0
#: How long all of them may, the killed ones too.
MORE_DRAIN_SECONDS = 5.0


class ProcessNotStarted(PenstockError):
    """A process has ended before it began to work, and did not say why."""


class ProcessRefused(UsageError):
    """A process cannot do what it is asked to; a restart would not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessWork:
    """What the processes of a program run, and how."""

    #: ``module:function``.  Called with ``given``, the process's number and its Calls, it returns
    #: the workers.
    build: str
    given: Any
    log_level: str
    log_format: str
    drain_seconds: float
    stuck_seconds: float
    #: Attempts a second of one process to connect again; None: no limit.
    pace: float | None = None

    @classmethod
    def of(
        cls, settings: ServiceSettings, build: str, given: Any, pace: float | None = None
    ) -> ProcessWork:
        """With what a program's settings say of every process."""
        return cls(
            build=build,
            given=given,
            log_level=settings.log_level,
            log_format=settings.log_format,
            drain_seconds=settings.drain_seconds,
            stuck_seconds=settings.stuck_seconds,
            pace=pace,
        )


class Line:
    """One end of the socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._rest = b""
        self._lock = threading.Lock()

    def send(self, message: Any) -> None:
        """Write a message.  OSError when the other end is closed."""
        with self._lock:
            self._end.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float | None = None) -> Any:
        """The next message, or None when none came in time.

        EOFError when the other end is closed.
        """
        while b"\n" not in self._rest:
            self._end.settimeout(seconds)
            try:
                more = self._end.recv(65_536)
            except TimeoutError:
                return None
            except OSError:
                more = b""
            if not more:
                raise EOFError
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        """Close this end."""
        self._end.close()


class ChildProcess:
    """A worker that runs one process and drains it when told to stop."""

    def __init__(self, number: int, work: ProcessWork) -> None:
        self.name = f"process:{number}"
        self.started = False
        self.undrained = False
        self._number = number
        self._work = work
        self._line: Line | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._runs = 0
        self._silent_since: float | None = None
        self._stuck: list[str] = []
        self._last: Figures = {}
        self._gone: Figures = {}

    def run(self, stop: threading.Event) -> None:
        """Start the process and wait for its end.  When told to stop, drain it."""
        self._runs += 1
        with self._running() as (line, process):
            told = self._follow(line, stop)
            code, has_started = process.wait(), self.started
        if stop.is_set():
            self.undrained = self.undrained or code != 0
            return
        problem = told.get("ended", "")
        if problem and (told["usage"] or self._runs == 1):
            raise ProcessRefused(problem, hint=told["hint"])
        text = f"{self.name} ended, {exit_text(code)}: {problem or 'it did not say why'}"
        if has_started:
            raise ProcessEnded(text, hint="what it had in hand comes again")
        raise ProcessNotStarted(text)

    def last_turn(self) -> float:
        """Always now.  Whether the process is alive is decided by :meth:`not_live`."""
        return time.monotonic()

    def counters(self) -> dict[str, float]:
        """It has none.  :meth:`figures` has the counters of the workers in the process."""
        return {}

    def kill(self) -> None:
        """Kill it at once.  A signal handler may call this."""
        process = self._process
        if process is not None:
            process.kill()

    def not_live(self) -> str:
        """What is stuck in it.

        That is the whole process once it is silent for as long as a batch may take.
        """
        self._ask()
        silent = self._silent_since
        if silent is not None and time.monotonic() - silent > self._work.stuck_seconds:
            return f"{self.name} does not answer"
        return f"{self.name} is stuck: {', '.join(self._stuck)}" if self._stuck else ""

    def figures(self) -> Figures:
        """Figures of this process and its predecessors.

        While it does not answer, the last known ones.
        """
        self._ask()
        return add_up([self._gone, self._last])

    @contextlib.contextmanager
    def _running(self) -> Iterator[tuple[Line, subprocess.Popen[bytes]]]:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock.upkeep.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C reaches all processes of a terminal. This one drains when the daemon says
                # so.
                start_new_session=True,
            )
        self._process, line = process, Line(ours)
        try:
            with contextlib.suppress(OSError):  # it has ended already: the closed socket will tell
                line.send({"number": self._number, "work": asdict(self._work)})
            yield line, process
        finally:
            self.started, self._line, self._stuck, self._silent_since = False, None, [], None
            process.kill()
            process.wait()
            line.close()
            self._gone, self._last = add_up([self._gone, only_counters(self._last)]), {}

    def _follow(self, line: Line, stop: threading.Event) -> dict[str, Any]:
        """Read what the process says until its end.  Returns its last message."""
        told: dict[str, Any] = {}
        give_up = float("inf")
        while time.monotonic() < give_up:
            if stop.is_set() and give_up == float("inf"):
                give_up = time.monotonic() + self._work.drain_seconds + KILLED_AFTER_SECONDS
                with contextlib.suppress(OSError):
                    line.send({"drain": True})
            try:
                message = line.receive(LOOK_SECONDS)
            except EOFError:
                return told
            if message is None:
                continue
            if "ended" in message:
                told = message
            elif "started" in message:
                self._line, self.started = line, True
            else:
                self._answers.put(message)
        assert self._process is not None
        self._process.kill()
        return told

    def _ask(self) -> None:
        """Ask the process for its state, unless another thread is asking it now."""
        with self._asking:
            line = self._line
            if line is None:
                return
            while not self._answers.empty():  # a late answer to the question before
                self._answers.get()
            try:
                line.send({"ask": True})
                answer = self._answers.get(timeout=ASK_SECONDS)
            except (OSError, queue.Empty):
                self._silent_since = self._silent_since or time.monotonic()
                return
            self._silent_since = None
            self._stuck = answer["stuck"]
            self._last = {(name, label): value for name, label, value in answer["figures"]}


def abort_all(children: Sequence[ChildProcess]) -> None:
    """End all at once: what a second signal does."""
    for each in children:
        each.kill()
    abort()
