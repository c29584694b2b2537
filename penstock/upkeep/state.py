"""What the pages say about the workers of a program, in its own process or in several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.consumer.running.supervisor import Supervisor
from penstock.upkeep.metrics import Figures, Histogram, add_up
from penstock.upkeep.processes import ChildProcess
from penstock.upkeep.watch import Watch, of_this_process
from penstock.upkeep.workers import SequencerWorker


class State(Protocol):
    """The state of one program, as its pages need it."""

    def not_live(self) -> str:
        """Why the program has to be started again, or ''."""

    def not_ready(self) -> str:
        """Why the program cannot work now, or ''."""

    def figures(self) -> Figures:
        """Every metric."""


class Calls:
    """How long the handlers of each worker took."""

    def __init__(self) -> None:
        self._histograms: dict[str, Histogram] = {}

    def timed(self, worker: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, measured as one of this worker."""
        return self._histograms.setdefault(worker, Histogram()).timed(function)

    def figures(self) -> Figures:
        """A histogram for each worker."""
        return {("handler_seconds", name): each.figure() for name, each in self._histograms.items()}


def figures_of(supervisor: Supervisor, calls: Calls) -> Figures:
    """What the workers of this process have done."""
    found = of_this_process() | calls.figures()
    for worker, restarts, error in supervisor.states():
        found["worker_restarts", worker.name] = float(restarts)
        found["worker_up", worker.name] = 0.0 if error else 1.0
        own = worker.counters()
        own |= getattr(worker, "gauges", dict)()
        found |= {(name, worker.name): value for name, value in own.items()}
    return found


class OneProcess:
    """The state of a program whose workers run in this process."""

    def __init__(self, supervisor: Supervisor, watch: Watch, calls: Calls) -> None:
        self._supervisor = supervisor
        self._watch = watch
        self._calls = calls

    def not_live(self) -> str:
        """Names the workers whose loop has not finished a round for too long."""
        stuck = self._supervisor.stuck()
        return f"stuck: {', '.join(stuck)}" if stuck else ""

    def not_ready(self) -> str:
        """Not ready: while it drains, while the database is away, and while no sequencer works."""
        if self._supervisor.draining:
            return "draining"
        return self._watch.not_ready() or self._silent_sequencer()

    def figures(self) -> Figures:
        """The figures of the workers and of the database."""
        return figures_of(self._supervisor, self._calls) | self._watch.figures()

    def _silent_sequencer(self) -> str:
        """Names a sequencer of this process that makes no pass, whether events wait or not."""
        limit = self._watch.waiting_seconds
        for worker, _, _ in self._supervisor.states():
            if limit is not None and isinstance(worker, SequencerWorker):
                silent = worker.silent_seconds()
                if silent > limit:
                    return f"the sequencer has made no pass for {silent:.0f} s"
        return ""


class ManyProcesses(OneProcess):
    """The workers run in processes that the supervisor keeps."""

    def __init__(
        self, supervisor: Supervisor, watch: Watch, children: Sequence[ChildProcess]
    ) -> None:
        super().__init__(supervisor, watch, Calls())
        self._children = children

    def not_live(self) -> str:
        """Stuck workers, and processes that have not answered for too long."""
        return "; ".join(filter(None, (each.not_live() for each in self._children)))

    def not_ready(self) -> str:
        """What is not ready, which includes a process that has not started yet."""
        problem = super().not_ready()
        if problem:
            return problem
        missing = [each.name for each in self._children if not each.started]
        return f"not started: {', '.join(missing)}" if missing else ""

    def figures(self) -> Figures:
        """Figures added up over the processes, including those that have ended."""
        own = figures_of(self._supervisor, self._calls)
        return add_up([own, *(each.figures() for each in self._children)]) | self._watch.figures()
