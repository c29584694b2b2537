"""What the daemon's HTTP pages show when it has several processes."""

from __future__ import annotations

from collections.abc import Sequence

from consumers.processes import ChildProcess
from penstock.consumer.running.supervisor import Supervisor
from penstock.upkeep.metrics import Figures, add_up
from penstock.upkeep.state import Calls, OneProcess, figures_of
from penstock.upkeep.watch import Watch


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
