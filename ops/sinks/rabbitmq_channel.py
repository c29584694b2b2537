"""The connection of one partition to RabbitMQ, and what it publishes."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import pika
from pika.exceptions import (
    AMQPError,
    ChannelClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from ops.sinks.base import EventRefused, RelayBlock, SinkMisconfigured, SinkUnavailable
from ops.sinks.cloudevents import attributes
from ops.sinks.sent import SentEvents, left
from penstock.errors import SinkError
from penstock.log.restores import Seen
from penstock.publishing.rows import EXCHANGE, ROUTING_KEY
from penstock.records import Event

# It logs every lost connection with its stack, which is raised here as an error of one line.
logging.getLogger("pika").setLevel(logging.CRITICAL)

_PERSISTENT: Final = 2
_SHORT_BYTES = 255
#: The headers of a message are one frame, of the size that RabbitMQ agrees to by default.
_FRAME_BYTES = (128 << 10) - 64
#: RabbitMQ's default for a whole message.
_MESSAGE_BYTES = 16 << 20
_LAST_TURNS = 5
#: Not found, access refused, a property that differs.
_SETUP = frozenset({403, 404, 406})
_PLACES = ("topic", "type", "key")


class RabbitRoute:
    """Where an event goes: an exchange, and a routing key made from a template."""

    def __init__(self, exchange: str, template: str, is_queue: bool) -> None:
        self.exchange = exchange
        self.template = template
        self.is_queue = is_queue
        if not is_queue:
            try:
                template.format(**dict.fromkeys(_PLACES, ""))
            except (KeyError, IndexError, ValueError) as error:
                raise ValueError(
                    "route=, in which only {topic}, {type} and {key} can stand in braces"
                ) from error

    def of(self, event: Event) -> tuple[str, str]:
        """Exchange and routing key of an event.  What its publisher has set comes first."""
        if self.is_queue:
            return "", self.template
        key = event.headers.get(ROUTING_KEY) or self.template.format(
            topic=event.topic.replace("/", "."), type=event.type, key=event.key
        )
        return str(event.headers.get(EXCHANGE) or self.exchange), str(key)


@dataclass(frozen=True, slots=True)
class _Message:
    """An event as it is published."""

    event: Event
    exchange: str
    routing_key: str
    properties: pika.BasicProperties

    @classmethod
    def of(cls, event: Event, route: RabbitRoute, relay: str) -> _Message:
        """Its attributes as CloudEvents has them for AMQP.  The payload is not changed."""
        found = {name: str(value) for name, value in attributes(event).items()}
        content_type = found.pop("datacontenttype", None)
        exchange, routing_key = route.of(event)
        properties = pika.BasicProperties(
            delivery_mode=_PERSISTENT,
            message_id=str(event.event_id),
            content_type=content_type,
            timestamp=max(0, int(event.created_at.timestamp())),
            headers={f"cloudEvents_{name}": value for name, value in found.items()},
        )
        message = cls(event, exchange, routing_key, properties)
        message.check()
        return message

    def check(self) -> None:
        """EventRefused for what would close the channel, and with it stop the whole block."""
        sequence = self.event.sequence
        for what, text in (
            ("content type", self.properties.content_type or ""),
            ("exchange", self.exchange),
            ("routing key", self.routing_key),
        ):
            if len(text.encode("utf-8", "surrogatepass")) > _SHORT_BYTES:
                raise EventRefused(sequence, f"its {what} has more than {_SHORT_BYTES} bytes")
        try:
            size = sum(map(len, self.properties.encode()))
        except ValueError as error:
            raise EventRefused(sequence, f"it cannot be encoded: {error}") from error
        if size > _FRAME_BYTES:
            raise EventRefused(sequence, f"its headers have {size} bytes, RabbitMQ takes 128 KiB")
        if len(self.event.payload) > _MESSAGE_BYTES:
            raise EventRefused(sequence, "it is larger than RabbitMQ takes: 16 MiB")


class RabbitLink:
    """A connection with one channel, which runs only while it is waited for."""

    def __init__(self, parameters: pika.ConnectionParameters, seconds: float) -> None:
        self._parameters = parameters
        self._seconds = seconds
        self._connection: Any = None
        self._channel: Any = None
        self._failure: BaseException | None = None
        self._ended = False
        #: How many messages the channel has got: the broker counts them in its confirms.
        self.published = 0
        self.on_confirm: Callable[[Any], None] = lambda _: None
        self.on_return: Callable[[Any], None] = lambda _: None

    def channel(self) -> Any:
        """The open channel, in confirm mode."""
        if self._connection is not None:
            self._look()
        if self._channel is not None and self._channel.is_open:
            return self._channel
        self.close()
        self._require_wanted()
        self._failure = None
        ready: list[Any] = []
        self._connection = pika.SelectConnection(
            self._parameters,
            on_open_callback=lambda made: made.channel(on_open_callback=ready.append),
            on_open_error_callback=lambda _, error: self._fail(error),
            on_close_callback=lambda _, error: self._fail(error),
        )
        self._connection.ioloop.activate_poller()
        self.wait(lambda: bool(ready))
        self._channel, self.published = ready[0], 0
        self._channel.add_on_close_callback(lambda _, error: self._fail(error))
        self._channel.add_on_return_callback(lambda *given: self.on_return(given))
        agreed: list[Any] = []
        self._channel.confirm_delivery(
            lambda frame: self.on_confirm(frame.method), callback=agreed.append
        )
        self.wait(lambda: bool(agreed))
        return self._channel

    def declare(self, route: RabbitRoute, *, create: bool) -> None:
        """See that the queue or the exchange is there; ChannelClosedByBroker when it is not."""
        told: list[Any] = []
        channel = self.channel()
        if not route.is_queue:
            channel.exchange_declare(route.exchange, passive=True, callback=told.append)
        elif create:
            kind = {"x-queue-type": "quorum"}
            channel.queue_declare(
                route.template, durable=True, arguments=kind, callback=told.append
            )
        else:
            channel.queue_declare(route.template, passive=True, callback=told.append)
        self.wait(lambda: bool(told), translated=False)

    def wait(self, reached: Callable[[], bool], *, translated: bool = True) -> None:
        """Run the connection until it is reached, it fails, or the time is over."""
        deadline = time.monotonic() + self._seconds
        while not reached():
            self._require_wanted()
            if self._failure is not None:
                if translated or not isinstance(self._failure, ChannelClosedByBroker):
                    raise _translated(self._failure) from self._failure
                raise self._failure
            left_seconds = deadline - time.monotonic()
            if left_seconds <= 0:
                raise SinkUnavailable(f"RabbitMQ did not answer within {self._seconds:g} s")
            self._turn(left_seconds)

    def abort(self) -> None:
        """End what is waited for, from another thread."""
        self._ended = True
        connection = self._connection
        if connection is not None:
            with suppress(OSError, AttributeError):  # it was closed meanwhile
                connection.ioloop.add_callback_threadsafe(lambda: None)

    def close(self) -> None:
        """Close the connection.  What was not published is not published later."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is None:
            return
        with suppress(AMQPError, OSError):
            if connection.is_open:
                connection.close()
            elif not connection.is_closed:  # it was being opened
                connection._terminate_stream(AMQPError("given up"))
        closing = time.monotonic() + 1
        self._connection = connection
        while not connection.is_closed and time.monotonic() < closing:
            self._turn(0.1)
        for _ in range(_LAST_TURNS):  # pika closes its socket in a later turn
            self._turn(0)
        self._connection = None
        connection.ioloop.deactivate_poller()
        connection.ioloop.close()

    def _require_wanted(self) -> None:
        if self._ended:
            raise SinkUnavailable("the relay has ended the call to RabbitMQ")

    def _look(self) -> None:
        """What has come meanwhile, such as that the broker has closed the connection."""
        self._turn(0)

    def _turn(self, seconds: float) -> None:
        """One turn of the connection: what has come is handled, what waits is sent."""
        loop = self._connection.ioloop
        timer = loop.call_later(seconds, lambda: None)
        try:
            loop.poll()
            loop.process_timeouts()
        finally:
            loop.remove_timeout(timer)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error


class RabbitChannel:
    """Publishes the events of one partition."""

    def __init__(
        self, link: RabbitLink, route: RabbitRoute, sent: SentEvents, *, window: int
    ) -> None:
        self._link = link
        self._route = route
        self._sent = sent
        self._window = window

    def seen(self) -> Seen | None:
        """A queue cannot be asked."""
        return None

    def send_block(self, block: RelayBlock) -> None:
        """Publish every event of the block that this process has not sent yet."""
        confirmed = self._sent.of(block)
        messages = [
            _Message.of(event, self._route, block.relay) for event in left(block, confirmed)
        ]
        for start in range(0, len(messages), self._window):
            self._publish(messages[start : start + self._window], confirmed)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def abort(self) -> None:
        """End a wait for the broker."""
        self._link.abort()

    def _publish(self, messages: Sequence[_Message], confirmed: set[UUID]) -> None:
        channel = self._link.channel()
        answers = _Confirms(confirmed)
        self._link.on_confirm = answers.confirm
        self._link.on_return = answers.come_back
        for message in messages:
            self._link.published += 1
            answers.waits[self._link.published] = message
            channel.basic_publish(
                message.exchange,
                message.routing_key,
                message.event.payload,
                message.properties,
                mandatory=True,
            )
        self._link.wait(lambda: not answers.waits)
        answers.require_all()


class _Confirms:
    """What the broker says about the messages of a window."""

    def __init__(self, confirmed: set[UUID]) -> None:
        self.waits: dict[int, _Message] = {}
        self._confirmed = confirmed
        self._returned: dict[str, str] = {}
        self._refused = 0

    def come_back(self, returned: Sequence[Any]) -> None:
        """A message that no queue gets.  Its confirm follows."""
        _, method, properties, _ = returned
        self._returned[properties.message_id] = method.reply_text

    def confirm(self, method: Any) -> None:
        """The broker has stored a message, or all up to one; or it does not take them."""
        for tag in list(_tags(method, self.waits)):
            message = self.waits.pop(tag)
            if isinstance(method, pika.spec.Basic.Nack):
                self._refused += 1
            elif message.properties.message_id not in self._returned:
                self._confirmed.add(message.event.event_id)

    def require_all(self) -> None:
        """Raise for what was not stored."""
        if self._returned:
            reasons = ", ".join(sorted(set(self._returned.values())))
            raise SinkMisconfigured(
                f"RabbitMQ has no queue for {len(self._returned)} events: {reasons}",
                hint="bind a queue to the exchange for these routing keys",
            )
        if self._refused:
            raise SinkUnavailable(
                f"RabbitMQ did not take {self._refused} events",
                hint="see whether the queue is full (x-overflow) or has no leader",
            )


def _tags(method: Any, waits: Iterable[int]) -> Iterator[int]:
    for tag in waits:
        if tag == method.delivery_tag or (method.multiple and tag < method.delivery_tag):
            yield tag


def _translated(error: BaseException) -> SinkError:
    """An error of pika.  None of its texts holds the password."""
    while inner := getattr(error, "exceptions", None) or getattr(error, "exception", None):
        error = inner[-1] if isinstance(inner, list | tuple) else inner
    text = f"RabbitMQ: {type(error).__name__} ({error})"
    if isinstance(error, ProbableAuthenticationError | ProbableAccessDeniedError):
        return SinkMisconfigured(
            text, hint="check PENSTOCK_RABBITMQ_USERNAME, _PASSWORD and the virtual host's rights"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return SinkUnavailable(text, hint="name the authority: PENSTOCK_RABBITMQ_CA_FILE")
    if isinstance(error, ChannelClosedByBroker) and error.reply_code in _SETUP:
        return SinkMisconfigured(text, hint="check the exchange and the login's rights there")
    return SinkUnavailable(text)
