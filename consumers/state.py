"""What the daemon's pages say: of the workers of one process, or of several processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from consumers.metrics import Figures, add_up
from consumers.processes import ChildProcess
from consumers.watch import Watch, of_this_process
from consumers.workers import MeteredConsumer
from penstock.consumer.supervisor import Supervisor
from penstock.consumer.worker import ConsumerWorker


class State(Protocol):
    """One daemon, as its pages ask for it."""

    def not_live(self) -> str:
        """Why it has to be started again, or ''."""

    def not_ready(self) -> str:
        """Why it cannot work now, or ''."""

    def figures(self) -> Figures:
        """Every metric."""


def figures_of(supervisor: Supervisor) -> Figures:
    """What the workers of this process have done."""
    found = of_this_process()
    for worker, restarts, error in supervisor.states():
        found["worker_restarts", worker.name] = float(restarts)
        found["worker_up", worker.name] = 0.0 if error else 1.0
        own = worker.counters()
        if isinstance(worker, ConsumerWorker):
            own |= worker.gauges()
        if isinstance(worker, MeteredConsumer):
            found["handler_seconds", worker.name] = worker.calls.figure()
        found |= {(name, worker.name): value for name, value in own.items()}
    return found


class OneProcess:
    """The workers run here."""

    def __init__(self, supervisor: Supervisor, watch: Watch) -> None:
        self._supervisor = supervisor
        self._watch = watch

    def not_live(self) -> str:
        """Workers whose loop has not gone round for too long."""
        stuck = self._supervisor.stuck()
        return f"stuck: {', '.join(stuck)}" if stuck else ""

    def not_ready(self) -> str:
        """While it drains, and while the database is away."""
        return "draining" if self._supervisor.draining else self._watch.problem()

    def figures(self) -> Figures:
        """Of the workers, and of the database."""
        return figures_of(self._supervisor) | self._watch.figures()


class ManyProcesses(OneProcess):
    """The workers run in processes that the supervisor keeps."""

    def __init__(
        self, supervisor: Supervisor, watch: Watch, children: Sequence[ChildProcess]
    ) -> None:
        super().__init__(supervisor, watch)
        self._children = children

    def not_live(self) -> str:
        """Stuck workers, and processes that have not answered for too long."""
        return "; ".join(filter(None, (each.not_live() for each in self._children)))

    def not_ready(self) -> str:
        """Also while a process has not started yet."""
        problem = super().not_ready()
        if problem:
            return problem
        missing = [each.name for each in self._children if not each.started]
        return f"not started: {', '.join(missing)}" if missing else ""

    def figures(self) -> Figures:
        """Added up over the processes, those that are gone too."""
        own = figures_of(self._supervisor)
        return add_up([own, *(each.figures() for each in self._children)]) | self._watch.figures()
