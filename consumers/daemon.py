"""The daemon: consumers, sequencer, relays and sweep in one process.

The first SIGTERM or SIGINT drains: no new work, what is in hand is finished and committed, leases
are given back.  A second one aborts.  Exit codes: 0 drained, 1 not drained in time or aborted, 2
refused to start, or ended by a worker that cannot go on.
"""

from __future__ import annotations

import functools
import logging
import os

from consumers.http import HealthServer
from consumers.settings import Settings
from consumers.workers import RelayWorker, SequencerWorker, SweepWorker
from ops.sinks.address import configured_sink
from penstock import database, migrate, stream
from penstock.consumer import Consumer
from penstock.errors import ConfigurationError, PenstockError, SubscriptionNotFound
from penstock.process import drain_on_signals
from penstock.supervisor import Supervisor
from penstock.worker import ConsumerWorker, Worker

logger = logging.getLogger("penstock.daemon")


def run(settings: Settings) -> int:
    """Run until a signal says stop; answers the exit code."""
    supervisor = Supervisor(build_workers(settings), stuck_after_seconds=settings.stuck_seconds)
    with database.connect(settings.url) as connection:
        migrate.require_usable(connection)
        _require_subscriptions(connection, settings)
    server = HealthServer(
        settings.http_host,
        settings.http_port,
        supervisor,
        functools.partial(_not_ready, settings.url),
    )
    drain_on_signals(supervisor)
    server.start()
    supervisor.start()
    logger.info("started", extra={"http_port": server.port, "pid": os.getpid()})
    try:
        supervisor.wait()
        logger.info("draining")
        drained = supervisor.drain(settings.drain_seconds)
    finally:
        server.stop()
    if not drained:
        logger.error("not drained within %s s", settings.drain_seconds)
    return 0 if drained else 1


def build_workers(settings: Settings) -> list[Worker]:
    """The workers that the roles ask for; nothing is connected or started yet."""
    _require_work(settings)
    workers: list[Worker] = []
    if "sequencer" in settings.roles:
        workers.append(SequencerWorker(settings.url))
    if "sweep" in settings.roles:
        workers.append(SweepWorker(settings.url))
    if "relay" in settings.roles:
        workers += _relays(settings)
    if "consumers" in settings.roles:
        workers += _consumers(settings)
    return workers


def _require_work(settings: Settings) -> None:
    """Options without their role, and roles without their options, are mistakes."""
    for role, given, option in (
        ("relay", settings.relays, "--relay"),
        ("consumers", settings.consumers | settings.batch_consumers, "--consumer"),
    ):
        if (role in settings.roles) != bool(given):
            raise ConfigurationError(
                f"the role {role} goes together with the option {option}",
                hint=f"give both, or leave both out (roles: {', '.join(sorted(settings.roles))})",
            )
    given_names = settings.subscriptions()
    twice = sorted({name for name in given_names if given_names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"the subscription {twice[0]!r} is given twice",
            hint="each has one handler or one sink; a second reader is a second subscription",
        )


def _require_subscriptions(connection: database.Connection, settings: Settings) -> None:
    for name in settings.subscriptions():
        if not stream.lag(connection, name):
            raise SubscriptionNotFound(
                f"there is no subscription {name!r}",
                hint=f"create it: penstock subscription create {name} --topic TOPIC",
            )


def _relays(settings: Settings) -> list[Worker]:
    for address in settings.relays.values():
        configured_sink(address).close()  # a wrong address shows here, before anything is started
    return [
        RelayWorker(
            f"relay:{name}", settings.url, name, functools.partial(configured_sink, address)
        )
        for name, address in settings.relays.items()
    ]


def _consumers(settings: Settings) -> list[Worker]:
    make = functools.partial(
        Consumer, consumer_id=settings.consumer_id, batch_size=settings.batch_size
    )
    by_event = {
        name: functools.partial(make, settings.url, name, handler=handler)
        for name, handler in settings.consumers.items()
    }
    by_batch = {
        name: functools.partial(make, settings.url, name, batch_handler=handler)
        for name, handler in settings.batch_consumers.items()
    }
    return [
        ConsumerWorker(f"consumer:{name}", each) for name, each in (by_event | by_batch).items()
    ]


def _not_ready(url: str) -> str:
    """Why the daemon cannot work now, or ''."""
    try:
        with database.connect(url, statement_timeout_ms=2000) as connection:
            connection.execute("SELECT 1")
    except PenstockError as error:
        return error.message
    except Exception as error:  # whatever it is, the answer must be an answer
        return f"the database refused: {error}".strip()
    return ""
