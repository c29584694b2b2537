"""Sinks under test that only take: everything at least once, doubled within the open block."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, ClassVar

from ops.sinks.address import open_sink
from ops.sinks.base import Sink
from ops.sinks.cloudevents import source
from tests.relay.aws_server import Queue
from tests.relay.conformance.under_test import Stored, UnderTest
from tests.relay.rabbits import LOGIN, Rabbit
from tests.relay.receivers import SECRET, Call, Receiver, Says, receiving

_LARGE = 2 << 20


class OnlyTakes(UnderTest):
    """What they have in common."""

    exactly: ClassVar[bool] = False
    cannot: ClassVar[Mapping[str, str]] = {
        "what it has seen": "it cannot be asked",
        "foreign writer": "it cannot be asked, and others may write there",
    }


class OnWebhook(OnlyTakes):
    """A receiver of webhooks, which takes no more than two mebibytes."""

    name = "webhook"
    fixture = "receiver"

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.address = receiver.address
        self.environ = receiver.environ()
        self.away = "webhook+https://localhost:80/in"
        self._taken: list[bytes] = []
        receiver.answer = self._take

    def stored(self, topic: str, known_as: str, partition: int) -> list[Stored]:
        """What was taken, in order."""
        found = [json.loads(each) for each in self._taken]
        return [
            (int(each["sequence"]), _payload(each))
            for each in found
            if (each["source"], each["penstockpartition"]) == (source(topic), partition)
        ]

    def restart(self) -> None:
        """It takes the next call, and ends before it has answered."""

        def answer(call: Call) -> Says:
            self.receiver.answer = self._take
            self._take(call)
            return Says(0)

        self.receiver.answer = answer

    def too_large(self) -> int:
        """It answers 413."""
        return _LARGE

    def wrong(self, topic: str) -> tuple[str, str]:
        """Without a secret."""
        return "webhook+https://localhost/in", "would not be signed"

    @contextmanager
    def throttled(self) -> Iterator[tuple[Sink, float | None]]:
        """It says when to come again."""
        with self._answers(Says(429, {"Retry-After": "7"})) as sink:
            yield sink, 7.0

    @contextmanager
    def expired(self) -> Iterator[tuple[Sink, str]]:
        """It does not take the signature any more."""
        with self._answers(Says(401, body=SECRET.encode())) as sink:
            yield sink, SECRET

    @contextmanager
    def full(self, topic: str) -> Iterator[None]:
        """It answers that it cannot, after some events."""
        left = [10]

        def answer(call: Call) -> Says:
            left[0] -= 1
            return self._take(call) if left[0] >= 0 else Says(503)

        self.receiver.answer = answer
        yield
        self.receiver.answer = self._take

    @contextmanager
    def _answers(self, said: Says) -> Iterator[Sink]:
        self.receiver.answer = lambda _: said
        yield self.sink()
        self.receiver.answer = self._take

    def _take(self, call: Call) -> Says:
        if len(call.body) > _LARGE:
            return Says(413)
        self._taken.append(call.body)
        return Says()


class OnQueue(OnlyTakes):
    """A FIFO queue of SQS."""

    name = "sqs"
    fixture = "sqs"
    cannot: ClassVar[Mapping[str, str]] = {
        **OnlyTakes.cannot,
        "back pressure": "a queue takes any number of messages",
    }
    #: The server in this process is slow, and ElasticMQ has every case too.
    slow = frozenset({"order", "late relay", "unavailable", "throttled", "closed after an error"})

    def __init__(
        self, endpoint: str, *, fifo: bool = True, restart: Callable[[], None] = lambda: None
    ) -> None:
        self._restart = restart
        self.queue = Queue(endpoint, fifo=fifo)
        self.address = self.queue.address
        self.away = "sqs://eu-central-1/q.fifo?endpoint=http://127.0.0.1:1"
        self._read: list[Any] = []

    def stored(self, topic: str, known_as: str, partition: int) -> list[Stored]:
        """What was taken.  It keeps the order of each key only, so it is sorted."""
        self._read += [json.loads(each["Body"]) for each in self.queue.read()]
        return sorted(
            (int(each["sequence"]), _payload(each))
            for each in self._read
            if (each["source"], each["penstockpartition"]) == (source(topic), partition)
        )

    def restart(self) -> None:
        """AWS does not stop; a server of the tests does."""
        self._restart()

    def too_large(self) -> int:
        """It takes one mebibyte."""
        return _LARGE

    def wrong(self, topic: str) -> tuple[str, str]:
        """A queue that is not there."""
        return f"sqs://eu-central-1/none?endpoint={self.queue.endpoint}", "check the region"

    @contextmanager
    def throttled(self) -> Iterator[tuple[Sink, float | None]]:
        """As AWS says it, which no server of the tests does."""
        with _answering("RequestThrottled") as sink:
            yield sink, None

    @contextmanager
    def expired(self) -> Iterator[tuple[Sink, str]]:
        """The same."""
        with _answering("ExpiredToken") as sink:
            yield sink, "hunter2"


class OnElastic(OnQueue):
    """A FIFO queue of ElasticMQ."""

    name = "elasticmq"
    fixture = "elastic_sqs"


@contextmanager
def _answering(code: str) -> Iterator[Sink]:
    """A queue of a server that has only this answer."""
    body = json.dumps({"__type": f"com.amazonaws.sqs#{code}", "message": "so"}).encode()
    with receiving() as receiver:
        receiver.answer = lambda _: Says(400, {"Content-Type": "application/x-amz-json-1.0"}, body)
        yield open_sink(f"sqs://eu-central-1/q.fifo?endpoint=http://127.0.0.1:{receiver.port}")


class OnRabbitMQ(OnlyTakes):
    """A RabbitMQ, and a queue for everything."""

    name = "rabbitmq"
    fixture = "rabbit"
    cannot: ClassVar[Mapping[str, str]] = {
        **OnlyTakes.cannot,
        "throttled": "it reads a connection more slowly and refuses nothing",
    }

    def __init__(self, rabbit: Rabbit, most: int | None = 1_000) -> None:
        self.rabbit = rabbit
        self._most = most or 0
        limit = {"x-max-length": most, "x-overflow": "reject-publish"} if most else {}
        self.queue = rabbit.queue(**limit)
        self._taken: list[tuple[Any, bytes]] = []
        self.environ = LOGIN
        self.address = rabbit.address(f"queue={self.queue}")
        self.away = "amqp://127.0.0.1:1/?queue=q"

    def stored(self, topic: str, known_as: str, partition: int) -> list[Stored]:
        """What was in the queue, in order."""
        self._taken += self.rabbit.read(self.queue)
        return [
            (int(headers["cloudEvents_sequence"]), body)
            for headers, body in ((each.headers or {}, body) for each, body in self._taken)
            if headers.get("cloudEvents_source") == source(topic)
            and headers["cloudEvents_penstockpartition"] == str(partition)
        ]

    def restart(self) -> None:
        """Its crash, on the same port again."""
        self.rabbit.server.kill()
        self.rabbit.server.start()

    def too_large(self) -> int:
        """It takes sixteen mebibytes."""
        return 17 << 20

    def wrong(self, topic: str) -> tuple[str, str]:
        """Without the login."""
        return self.rabbit.address("queue=none"), "PENSTOCK_RABBITMQ_USERNAME"

    @contextmanager
    def expired(self) -> Iterator[tuple[Sink, str]]:
        """The broker does not take the password any more."""
        secret = "hunter2"
        query = f"queue={self.queue}"
        yield self.rabbit.sink(query, PENSTOCK_RABBITMQ_PASSWORD=secret), secret

    @contextmanager
    def full(self, topic: str) -> Iterator[None]:
        """Others have filled the queue, but for a few places."""
        with closing(self.rabbit.connect()) as connection:
            channel = connection.channel()
            for _ in range(self._most - 50):
                channel.basic_publish("", self.queue, b"other")
        yield
        self._taken += self.rabbit.read(self.queue)


def _payload(line: Mapping[str, Any]) -> bytes:
    if "data_base64" in line:
        return base64.b64decode(line["data_base64"])
    return json.dumps(line["data"]).encode()
