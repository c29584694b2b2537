"""RabbitMQ: every event at least once, in order, confirmed by the broker.

A queue tells nobody what came last, so a block whose relay was killed is sent again by its
successor: what is doubled lies in that block and carries the same message id. The events of a block
are published one after another without waiting, and the block is stored when the broker has
confirmed all of them. They are persistent and mandatory: what no queue would get comes back, and
the relay says so instead of losing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote

import pika
from pika.exceptions import ChannelClosedByBroker

from ops.sinks.base import SinkLease, SinkMisconfigured
from ops.sinks.logins import secret, tls
from ops.sinks.options import count, flag, host_and_port, options_of
from ops.sinks.rabbitmq_channel import RabbitChannel, RabbitLink, RabbitRoute
from ops.sinks.sent import SentEvents
from penstock.errors import ConfigurationError

PREFIX = "PENSTOCK_RABBITMQ"

_PORTS = {"amqp": 5672, "amqps": 5671}
_SECONDS = 30
_WINDOW = 1_000
_NOT_FOUND = 404


def open_sink(parts: SplitResult, environ: Mapping[str, str], beside: str) -> RabbitSink:
    """The sink of `amqp://HOST[:PORT]/[VHOST]?queue=NAME` or `?exchange=NAME[&route=TEMPLATE]`.

    With ``beside`` the queue's name, or the routing key, ends with it.
    """
    options = options_of(parts, ("queue", "exchange", "route", "create", "window"), "RabbitMQ")
    queue, exchange = options.get("queue", ""), options.get("exchange", "")
    if bool(queue) == bool(exchange) or (queue and "route" in options):
        raise ConfigurationError("the RabbitMQ address names not one of queue= and exchange=")
    window = count(options, "window", "RabbitMQ", lowest=1) or _WINDOW
    server = host_and_port(parts, "RabbitMQ", _PORTS[parts.scheme])
    end = f".{beside}" if beside else ""
    try:
        route = RabbitRoute(exchange, (queue or options.get("route", "{topic}")) + end, bool(queue))
    except ValueError as error:
        raise ConfigurationError(f"the RabbitMQ address has {error}") from error
    user = secret(environ, f"{PREFIX}_USERNAME")
    password = secret(environ, f"{PREFIX}_PASSWORD")
    context = tls(environ, PREFIX) if parts.scheme == "amqps" else None
    parameters = pika.ConnectionParameters(
        **server,
        virtual_host=unquote(parts.path[1:]) or "/",
        credentials=pika.PlainCredentials(user or "guest", password or "guest"),
        ssl_options=None if context is None else pika.SSLOptions(context, server["host"]),
        # Between two blocks nobody answers heartbeats. A call has a time limit of its own.
        heartbeat=0,
        socket_timeout=_SECONDS / 2,
        stack_timeout=_SECONDS / 2,
        connection_attempts=1,
        client_properties={"connection_name": "penstock relay"},
    )
    create = flag(options, "create", "RabbitMQ", default=False)
    return RabbitSink(parameters, route, create=create and bool(queue), window=window)


@dataclass(frozen=True, slots=True)
class _Target:
    """What an address asks for, in messages."""

    said: str
    hint: str


class RabbitSink:
    """Publishes to one exchange, or to one queue."""

    #: Also the relay of a queue can send to it.
    any_order = True

    name = "rabbitmq"
    max_block_events = 1_000
    max_block_bytes = 8 << 20

    def __init__(
        self,
        parameters: pika.ConnectionParameters,
        route: RabbitRoute,
        *,
        create: bool,
        window: int,
    ) -> None:
        self.route = route
        self.sent = SentEvents()
        self._parameters = parameters
        self._create = create
        self._window = window

    def preflight(self, topic: str, partitions: int) -> None:
        """See that the exchange or the queue is there.

        With ``create`` a missing queue is made: a durable quorum queue.
        """
        link = RabbitLink(self._parameters, _SECONDS)
        try:
            link.declare(self.route, create=self._create)
        except ChannelClosedByBroker as error:
            target = self._target()
            if error.reply_code != _NOT_FOUND:
                raise SinkMisconfigured(
                    f"{target.said}: {error.reply_text}", hint=target.hint
                ) from error
            raise SinkMisconfigured(f"{target.said} is not there", hint=target.hint) from error
        finally:
            link.close()

    def open(self, lease: SinkLease) -> RabbitChannel:
        """A channel over a connection of its own."""
        return RabbitChannel(
            RabbitLink(self._parameters, _SECONDS), self.route, self.sent, window=self._window
        )

    def close(self) -> None:
        """Channels hold the connections."""

    def _target(self) -> _Target:
        if self.route.is_queue:
            return _Target(
                f"the queue {self.route.template} of RabbitMQ",
                "make it (durable, of type quorum), or add &create=true to the address",
            )
        return _Target(
            f"the exchange {self.route.exchange} of RabbitMQ",
            "make it, and bind the queues that want the events",
        )
