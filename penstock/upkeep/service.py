"""How every long-running program of Penstock starts, waits and ends; ``run`` is the upkeep.

The first SIGTERM or SIGINT drains: the program takes no new work, finishes and commits the events
in hand, and gives its leases back.  A second signal aborts.  Exit codes: 0 drained, 1 not drained
in time or aborted, 2 refused to start, or ended by a worker that cannot go on.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Sequence
from typing import Any

from penstock import database
from penstock.consumer.running import process
from penstock.consumer.running.supervisor import STARTED_AFTER_SECONDS, Supervisor
from penstock.consumer.running.worker import Worker
from penstock.database import migrate, pace as reconnect
from penstock.upkeep import operations
from penstock.upkeep.pages import HealthServer, Pages
from penstock.upkeep.processes import MORE_DRAIN_SECONDS, ChildProcess, abort_all
from penstock.upkeep.settings import ServiceSettings, UpkeepSettings
from penstock.upkeep.state import Calls, OneProcess, State
from penstock.upkeep.watch import Watch
from penstock.upkeep.workers import AccountsWorker, SequencerWorker, SweepWorker

logger = logging.getLogger("penstock.service")


def run(url: str, settings: UpkeepSettings) -> int:
    """Sequence, keep storage ahead and sweep until a signal says stop.  Returns the exit code."""
    with database.connect(url) as connection:
        migrate.require_usable(connection)
    workers: list[Worker] = [
        SequencerWorker(url, settings.sequencer_events),
        AccountsWorker(url),
        SweepWorker(url, settings.sweep_seconds),
    ]
    supervisor = Supervisor(workers, stuck_after_seconds=settings.stuck_seconds)
    watch = Watch(url, [], everything=True, waiting_seconds=settings.waiting_seconds)
    state = OneProcess(supervisor, watch, Calls())
    try:
        return serve(supervisor, state, settings, pace=settings.reconnects_per_second)
    finally:
        watch.close()


def serve(
    supervisor: Supervisor,
    state: State,
    settings: ServiceSettings,
    *,
    pace: float | None = None,
    children: Sequence[ChildProcess] = (),
    pages: Pages | None = None,
    **told: Any,
) -> int:
    """Run the workers and the pages until told to stop.  Returns the exit code.

    ``pace`` limits the attempts a second to connect again.  ``children`` are the workers that are
    processes.  ``pages`` are served beside those of the state.  ``told`` is logged with the start.
    """
    operations.record()
    server = HealthServer(settings.http_host, settings.http_port, state, pages)
    if pace is not None:
        set_pace(pace)
    process.drain_on_signals(supervisor, again=functools.partial(abort_all, children))
    server.start()
    supervisor.start()
    logger.info("started", extra={"http_port": server.port, "pid": os.getpid()} | told)
    try:
        more_seconds = MORE_DRAIN_SECONDS if children else 0.0
        drained = wait_and_drain(supervisor, settings.drain_seconds, more_seconds)
        drained = drained and not any(each.undrained for each in children)
    finally:
        server.stop()
    return process.EXIT_DRAINED if drained else process.EXIT_NOT_DRAINED


def wait_and_drain(supervisor: Supervisor, seconds: float, more_seconds: float = 0.0) -> bool:
    """Wait until told to stop or a worker ends all, and then until everything in hand is done."""
    supervisor.wait()
    logger.info("draining")
    pace = reconnect.present()
    if pace is not None:
        pace.end()
    drained = supervisor.drain(seconds + more_seconds)
    if not drained:
        logger.error("not drained within %s s", seconds)
    return drained


def set_pace(per_second: float) -> None:
    """Limit this process's attempts to connect again.  A start may open all that it needs."""
    reconnect.limit(reconnect.Pace(per_second, grace_seconds=STARTED_AFTER_SECONDS))
