"""The daemon: consumers, sequencer, relays and sweep, in one process or in several.

The first SIGTERM or SIGINT drains: no new work, what is in hand is finished and committed, leases
are given back.  A second one aborts.  Exit codes: 0 drained, 1 not drained in time or aborted, 2
refused to start, or ended by a worker that cannot go on.
"""

from __future__ import annotations

import functools
import logging
import os

from consumers.http import HealthServer
from consumers.metrics import Histogram
from consumers.processes import ChildProcess
from consumers.settings import Settings, load_handler
from consumers.state import ManyProcesses, OneProcess
from consumers.watch import Watch
from consumers.workers import MeteredConsumer, RelayWorker, SequencerWorker, SweepWorker
from ops.relay import Relay
from ops.sinks.address import configured_sink
from penstock import database, subscriptions
from penstock.consumer import process
from penstock.consumer.consumer import Consumer
from penstock.consumer.supervisor import STARTED_AFTER_SECONDS, Supervisor
from penstock.consumer.worker import Worker
from penstock.database import migrate, pace as reconnect
from penstock.errors import SubscriptionNotFound

logger = logging.getLogger("penstock.daemon")

#: What draining may take beyond its limit, for processes that have to be killed.
MORE_DRAIN_SECONDS = 5.0


def run(settings: Settings) -> int:
    """Run until a signal says stop; answers the exit code."""
    is_one = settings.processes == 1
    children = [ChildProcess(n, settings) for n in range(1, settings.processes + 1) if not is_one]
    workers: list[Worker] = [*children] if children else build_workers(settings)
    require_sinks(settings)
    with database.connect(settings.url) as connection:
        migrate.require_usable(connection)
        _require_subscriptions(connection, settings)
    supervisor = Supervisor(workers, stuck_after_seconds=settings.stuck_seconds)
    watch = Watch(settings.url, settings.subscriptions(), everything="sweep" in settings.roles)
    state = OneProcess(supervisor, watch)
    if children:
        state = ManyProcesses(supervisor, watch, children)
    server = HealthServer(settings.http_host, settings.http_port, state)
    process.drain_on_signals(supervisor, again=functools.partial(_abort, children))
    set_pace(settings, len(children) + 1)
    server.start()
    supervisor.start()
    logger.info("started", extra={"http_port": server.port, "pid": os.getpid()})
    try:
        drained = wait_and_drain(supervisor, settings)
    finally:
        server.stop()
        watch.close()
    drained = drained and not any(each.undrained for each in children)
    return process.EXIT_DRAINED if drained else process.EXIT_NOT_DRAINED


def wait_and_drain(supervisor: Supervisor, settings: Settings) -> bool:
    """Until somebody says stop or a worker ends all, and then until everything in hand is done."""
    supervisor.wait()
    logger.info("draining")
    more = MORE_DRAIN_SECONDS if settings.processes > 1 else 0.0
    pace = reconnect.present()
    if pace is not None:
        pace.end()
    drained = supervisor.drain(settings.drain_seconds + more)
    if not drained:
        logger.error("not drained within %s s", settings.drain_seconds)
    return drained


def set_pace(settings: Settings, processes: int) -> None:
    """Share the daemon's attempts to connect again among so many processes."""
    each = settings.reconnects_per_second / processes
    reconnect.limit(reconnect.Pace(each, grace_seconds=STARTED_AFTER_SECONDS))


def build_workers(settings: Settings, number: int = 1) -> list[Worker]:
    """The workers of one process; nothing is connected or started yet.

    Consumers and relays run in each, and share out the partitions; the first has the rest.
    """
    workers: list[Worker] = []
    if "sequencer" in settings.roles and number == 1:
        workers.append(SequencerWorker(settings.url, settings.sequencer_events))
    if "sweep" in settings.roles and number == 1:
        workers.append(SweepWorker(settings.url, settings.sweep_seconds))
    workers += _relays(settings, number)
    workers += _consumers(settings, number)
    return workers


def require_sinks(settings: Settings) -> None:
    """A wrong address shows here, before anything is started."""
    for address in settings.relays.values():
        configured_sink(address).close()


def _require_subscriptions(connection: database.Connection, settings: Settings) -> None:
    for name in settings.subscriptions():
        if not subscriptions.lag(connection, name):
            raise SubscriptionNotFound(
                f"there is no subscription {name!r}",
                hint=f"create it: penstock subscription create {name} --topic TOPIC",
            )


def _consumer_id(settings: Settings, number: int) -> str | None:
    """An id that is given belongs to one process."""
    if settings.consumer_id is None or settings.processes == 1:
        return settings.consumer_id
    return f"{settings.consumer_id}-{number}"


def _relays(settings: Settings, number: int) -> list[Worker]:
    return [
        RelayWorker(
            f"relay:{name}",
            functools.partial(
                Relay,
                settings.url,
                name,
                consumer_id=_consumer_id(settings, number),
                weight=settings.weight,
                idle_seconds=settings.idle_seconds,
            ),
            functools.partial(configured_sink, address),
        )
        for name, address in settings.relays.items()
    ]


def _consumers(settings: Settings, number: int) -> list[Worker]:
    make = functools.partial(
        Consumer,
        consumer_id=_consumer_id(settings, number),
        coordination=settings.coordination,
        assign=settings.assign,
        weight=settings.weight,
        batch_size=settings.batch_size,
        concurrency=settings.concurrency,
        handler_seconds=settings.handler_seconds,
        idle_seconds=settings.idle_seconds,
    )
    workers: list[Worker] = []
    for kind, given in (
        ("handler", settings.consumers),
        ("batch_handler", settings.batch_consumers),
    ):
        for name, address in given.items():
            calls = Histogram()
            handler = {kind: calls.timed(load_handler(address))}
            one = functools.partial(make, settings.url, name, **handler)
            one()  # refuses what is no handler, before anything is started
            workers.append(MeteredConsumer(f"consumer:{name}", one, calls))
    return workers


def _abort(children: list[ChildProcess]) -> None:
    for each in children:
        each.kill()
    process.abort()
