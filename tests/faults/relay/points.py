"""Named points in the work on a block, at which a relay's process ends by SIGKILL."""

from __future__ import annotations

import functools
import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

POINTS = (
    "opened", "begun", "half", "produced", "committing", "committed", "sent", "settled",
)  # fmt: skip
#: Blocks have more events than this.
_HALF = 60
#: So many events make a part, where a sink stores a block in parts.
_PART = 50
_SOON = 0.006


class Points:
    """Ends the process at one point, the n-th time that it is reached."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._left = count
        self._lock = threading.Lock()

    def reach(self, name: str) -> None:
        """The process may end here."""
        if self._is_now(name):
            os.kill(os.getpid(), signal.SIGKILL)

    def soon(self, name: str) -> None:
        """The process may end a moment later, in the middle of a call."""
        if self._is_now(name):
            after = random.uniform(0, _SOON)
            threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def _is_now(self, name: str) -> bool:
        if name != self._name:
            return False
        with self._lock:
            self._left -= 1
            return self._left == 0


def put_into(points: Points, sink: str) -> None:
    """Put the points into the code of the relay and of a sink."""
    from ops.relay.block import BlockWork

    around(BlockWork, "commit", after=functools.partial(points.reach, "settled"))
    _SINKS[sink](points)


def around(
    owner: Any,
    name: str,
    *,
    before: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Do something before and after a call."""
    call = getattr(owner, name)

    @functools.wraps(call)
    def wrapped(*given: Any, **named: Any) -> Any:
        before()
        result = call(*given, **named)
        after()
        return result

    setattr(owner, name, wrapped)


def _files(points: Points) -> None:
    from ops.sinks import jsonl
    from ops.sinks.jsonl import JsonlChannel

    write = vars(jsonl)["write"]

    def halves(file: int, offset: int, lines: bytes) -> None:
        points.reach("begun")
        middle = len(lines) // 2
        write(file, offset, lines[:middle])
        points.reach("half")
        write(file, offset + middle, lines[middle:])
        points.reach("produced")
        points.soon("committing")  # the fsync follows

    vars(jsonl)["write"] = halves
    _around_blocks(points, JsonlChannel, "committed")


def _pulsar(points: Points) -> None:
    from ops.sinks.pulsar_channel import PulsarChannel
    from ops.sinks.pulsar_producer import PulsarProducer

    send = PulsarProducer._send
    sent = [0]

    def counted(producer: PulsarProducer, *given: Any) -> None:
        send(producer, *given)
        sent[0] += 1
        if sent[0] == _HALF:
            points.reach("half")

    def begun() -> None:
        sent[0] = 0
        points.reach("begun")

    def flushing() -> None:
        points.reach("produced")
        points.soon("committing")

    setattr(PulsarProducer, "_send", counted)  # noqa: B010 - for mypy it is no method
    around(PulsarProducer, "_flush", before=flushing)
    around(
        PulsarProducer, "deliver", before=begun, after=functools.partial(points.reach, "committed")
    )
    _around_blocks(points, PulsarChannel)


def _kafka(points: Points) -> None:
    from confluent_kafka import Producer

    from ops.sinks import kafka_producer
    from ops.sinks.kafka_channel import KafkaChannel

    class Pointed(Producer):
        """A producer with the points in it."""

        def begin_transaction(self) -> None:
            super().begin_transaction()
            self.produced = 0
            points.reach("begun")

        def produce(self, *given: Any, **named: Any) -> None:
            super().produce(*given, **named)
            self.produced += 1
            if self.produced == _HALF:
                points.reach("half")

        def flush(self, *given: Any) -> int:
            left = super().flush(*given)
            if not left:
                points.reach("produced")
            return left

        def commit_transaction(self, *given: Any) -> None:
            points.soon("committing")
            super().commit_transaction(*given)
            points.reach("committed")

    vars(kafka_producer)["Producer"] = Pointed
    _around_blocks(points, KafkaChannel)


def _redis(points: Points) -> None:
    from ops.sinks import redis_streams

    vars(redis_streams)["_CHUNK"] = _PART
    _in_parts(points, redis_streams.RedisChannel, redis_streams.RedisChannel, "_move")


def _penstock(points: Points) -> None:
    from ops.sinks import penstock_log

    vars(penstock_log)["_CHUNK"] = _PART
    _in_parts(points, penstock_log.PenstockChannel, penstock_log.PenstockChannel, "_move")


def _webhook(points: Points) -> None:
    from ops.sinks.guarded_http import Caller
    from ops.sinks.webhook import WebhookChannel

    _in_parts(points, WebhookChannel, Caller, "post")


def _sqs(points: Points) -> None:
    from ops.sinks.aws import AwsChannel, SqsQueue

    _in_parts(points, AwsChannel, SqsQueue, "send")


def _nats(points: Points) -> None:
    from nats.aio.client import Client

    from ops.sinks.nats_connection import NatsConnection
    from ops.sinks.nats_jetstream import NatsChannel

    publish, request = Client.publish, NatsConnection._request
    sent = [0]

    async def counted(client: Client, *given: Any, **named: Any) -> None:
        await publish(client, *given, **named)
        sent[0] += 1
        if sent[0] % _HALF == 0:
            await client.flush()
            points.reach("half")

    async def last(connection: NatsConnection, message: Any) -> Any:
        if "Nats-Batch-Commit" not in message[1]:
            return await request(connection, message)
        points.reach("produced")
        points.soon("committing")
        answer = await request(connection, message)
        points.reach("committed")
        return answer

    setattr(Client, "publish", counted)  # noqa: B010 - for mypy it is no method
    setattr(NatsConnection, "_request", last)  # noqa: B010
    around(NatsConnection, "send", before=functools.partial(points.reach, "begun"))
    _around_blocks(points, NatsChannel)


def _rabbitmq(points: Points) -> None:
    from ops.sinks import rabbitmq_channel
    from ops.sinks.rabbitmq_channel import RabbitChannel, RabbitLink

    def published() -> None:
        points.reach("produced")
        points.soon("committing")

    around(
        RabbitChannel,
        "_publish",
        before=functools.partial(points.reach, "begun"),
        after=functools.partial(points.reach, "committed"),
    )
    around(rabbitmq_channel._Confirms, "confirm", after=functools.partial(points.reach, "half"))
    around(RabbitLink, "wait", before=published)
    _around_blocks(points, RabbitChannel)


def _in_parts(points: Points, channel: Any, owner: Any, step: str) -> None:
    """A sink that stores a block in several parts, each by a call."""

    def before() -> None:
        points.reach("begun")
        points.soon("committing")

    def after() -> None:
        for each in ("half", "produced", "committed"):
            points.reach(each)

    around(owner, step, before=before, after=after)
    _around_blocks(points, channel)


def _around_blocks(points: Points, channel: Any, *also: str) -> None:
    def sent() -> None:
        for each in (*also, "sent"):
            points.reach(each)

    around(channel, "send_block", before=functools.partial(points.reach, "opened"), after=sent)


#: By the schemes of their addresses.
_SINKS: dict[str, Callable[[Points], None]] = {
    "jsonl": _files,
    "pulsar": _pulsar,
    "kafka": _kafka,
    "redis": _redis,
    "nats": _nats,
    "penstock": _penstock,
    "webhook": _webhook,
    "sqs": _sqs,
    "amqp": _rabbitmq,
}
