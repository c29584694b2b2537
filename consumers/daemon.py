"""The daemon: consumers, queues, sequencer, relays and sweep, in one process or in several.

It is the service of penstock.upkeep with more workers.  Signals and exit codes are the same.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from consumers.gateway.settings import gateway_options, gateway_settings, gateway_url
from consumers.settings import Settings, load_handler
from consumers.workers import RelayWorker
from ops.commands.installation import Installation
from ops.relay.making import relay_to
from ops.sinks.address import configured_sink
from ops.sinks.routing import order_of
from penstock import database, subscriptions
from penstock.accounts import MasterKeys
from penstock.archive.targets import Target
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.running.supervisor import Supervisor
from penstock.consumer.running.worker import ConsumerWorker, QueueWorker, Worker
from penstock.consumer.stream.consumer import Consumer
from penstock.database import migrate
from penstock.errors import SubscriptionNotFound
from penstock.subscriptions import queue
from penstock.upkeep import service
from penstock.upkeep.processes import ChildProcess, ProcessWork
from penstock.upkeep.state import Calls, ManyProcesses, OneProcess
from penstock.upkeep.watch import Watch
from penstock.upkeep.workers import AccountsWorker, SequencerWorker, SweepWorker

if TYPE_CHECKING:
    from consumers.gateway.pages.site import Site


def run(settings: Settings) -> int:
    """Run until a signal stops it.  Returns the exit code."""
    pace = settings.reconnects_per_second / (settings.processes + 1)
    work = ProcessWork.of(settings, f"{__name__}:workers_of_child", settings.to_json(), pace)
    children = [ChildProcess(number, work) for number in range(1, settings.processes + 1)]
    calls = Calls()
    workers: list[Worker] = [*children] if children else build_workers(settings, calls)
    require_sinks(settings)
    with database.connect(settings.url) as connection:
        migrate.require_usable(connection)
        _require_subscriptions(connection, settings)
    supervisor = Supervisor(workers, stuck_after_seconds=settings.stuck_seconds)
    watch = Watch(
        settings.url,
        settings.subscriptions(),
        everything="sweep" in settings.roles,
        waiting_seconds=settings.waiting_seconds if "sequencer" in settings.roles else None,
    )
    state = OneProcess(supervisor, watch, calls)
    if children:
        state = ManyProcesses(supervisor, watch, children)
    pages = _pages() if "gateway" in settings.roles else None
    try:
        return service.serve(supervisor, state, settings, pace=pace, children=children, pages=pages)
    finally:
        watch.close()
        if pages is not None:
            pages.close()


def workers_of_child(given: str, number: int, calls: Calls) -> list[Worker]:
    """The workers of one of several processes."""
    return build_workers(Settings.from_json(given), calls, number)


def build_workers(settings: Settings, calls: Calls, number: int = 1) -> list[Worker]:
    """The workers of one process; nothing is connected or started yet.

    Consumers, queues and relays run in every process and share the work. All other workers run in
    the first process only.
    """
    workers: list[Worker] = []
    if "sequencer" in settings.roles and number == 1:
        workers.append(SequencerWorker(settings.url, settings.sequencer_events))
        workers.append(AccountsWorker(settings.url))
    if "sweep" in settings.roles and number == 1:
        workers.append(SweepWorker(settings.url, settings.sweep_seconds))
    if "gateway" in settings.roles and number == 1:
        workers.append(_gateway())
    targets = Installation(settings.database).known_targets()
    workers += _relays(settings, calls, number, targets)
    workers += _consumers(settings, calls, number, targets)
    workers += _queues(settings, calls)
    return workers


def _gateway() -> Worker:
    """The gateway; its options come from its own variables and file, as for `penstock gateway`."""
    from consumers.gateway.worker import GatewayWorker  # its packages are an extra

    found = gateway_settings(gateway_url(os.environ), gateway_options({}, os.environ))
    return GatewayWorker(found, MasterKeys.from_environment())


def _pages() -> Site:
    """The page of the gateway, on the daemon's own port for /livez."""
    from consumers.gateway.pages.settings import page_settings  # its packages are an extra
    from consumers.gateway.pages.site import Site

    may = gateway_options({}, os.environ).values["page"]
    return Site(page_settings(os.environ, may), MasterKeys.from_environment())


def require_sinks(settings: Settings) -> None:
    """Open every sink once, so that a wrong address is found before anything is started."""
    for address in settings.relays.values():
        configured_sink(address).close()


def _require_subscriptions(connection: database.Connection, settings: Settings) -> None:
    for name in settings.subscriptions():
        is_queue = name in settings.queues or bool(order_of(settings.relays.get(name, "")))
        if not subscriptions.lag(connection, name):
            kind = "queue" if is_queue else "subscription"
            raise SubscriptionNotFound(
                f"there is no subscription {name!r}",
                hint=f"create it: penstock {kind} create {name} --topic TOPIC",
            )
        if is_queue:
            queue.describe(connection, name)  # refuses a stream


def _consumer_id(settings: Settings, number: int) -> str | None:
    """A process's consumer id.  Several processes cannot share one, so each adds its number."""
    if settings.consumer_id is None or settings.processes <= 1:
        return settings.consumer_id
    return f"{settings.consumer_id}-{number}"


def _relays(settings: Settings, calls: Calls, number: int, targets: list[Target]) -> list[Worker]:
    return [
        RelayWorker(
            f"relay:{name}",
            functools.partial(
                relay_to,
                url=settings.url,
                subscription=name,
                consumer_id=_consumer_id(settings, number),
                weight=settings.weight,
                idle_seconds=settings.idle_seconds,
                archive=targets,
                at_once=settings.relay_at_once,
                max_attempts=settings.relay_max_attempts,
            ),
            functools.partial(configured_sink, address),
            calls.timed,
        )
        for name, address in settings.relays.items()
    ]


def _consumers(
    settings: Settings, calls: Calls, number: int, targets: list[Target]
) -> list[Worker]:
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
        archive=targets or None,
    )
    workers: list[Worker] = []
    for kind, given in (
        ("handler", settings.consumers),
        ("batch_handler", settings.batch_consumers),
    ):
        for name, address in given.items():
            worker = f"consumer:{name}"
            handler = {kind: calls.timed(worker, load_handler(address))}
            one = functools.partial(make, settings.url, name, **handler)
            one()  # refuses a name that is no handler, before anything is started
            workers.append(ConsumerWorker(worker, one))
    return workers


def _queues(settings: Settings, calls: Calls) -> list[Worker]:
    workers: list[Worker] = []
    for name, address in settings.queues.items():
        worker = f"consumer:{name}"
        one = functools.partial(
            QueueConsumer,
            settings.url,
            name,
            handler=calls.timed(worker, load_handler(address)),
            concurrency=settings.concurrency,
            prefetch=settings.prefetch,
            visibility_seconds=settings.visibility_seconds,
            idle_seconds=settings.idle_seconds,
            handler_seconds=settings.handler_seconds,
        )
        one()  # refuses a name that is no handler, before anything is started
        workers.append(QueueWorker(worker, one))
    return workers
