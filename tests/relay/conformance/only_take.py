"""Sinks under test that only take: everything at least once, doubled within the open block."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from ops.sinks.address import open_sink
from ops.sinks.base import Sink
from ops.sinks.cloudevents import source
from tests.relay.aws_server import Queue
from tests.relay.conformance.under_test import Stored, UnderTest
from tests.relay.receivers import Call, Receiver, Says

if TYPE_CHECKING:
    from tests.relay.rabbits import Rabbit

_LARGE = 2 << 20


class OnlyTakes(UnderTest):
    """What they have in common."""

    exactly: ClassVar[bool] = False
    #: The fixture that it needs.
    fixture: ClassVar[str]
    cannot: ClassVar[Mapping[str, str]] = {
        "what it has seen": "it cannot be asked",
        "foreign writer": "it cannot be asked, and others may write there",
    }

    def __init__(self, server: Any) -> None:
        raise NotImplementedError

    @classmethod
    def of(cls, request: pytest.FixtureRequest) -> OnlyTakes:
        """On the server of the fixture."""
        return cls(request.getfixturevalue(cls.fixture))


class OnWebhook(OnlyTakes):
    """A receiver of webhooks, which takes no more than two mebibytes."""

    name = "webhook"
    fixture = "receiver"

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.address = receiver.address
        self.away = "webhook+https://localhost:80/in"
        self._taken: list[bytes] = []
        receiver.answer = self._take

    def sink(self) -> Sink:
        """With the secret, and the right to call this machine."""
        return open_sink(self.address, environ=self.receiver.environ())

    def stored(self, topic: str, known_as: str, partition: int) -> list[Stored]:
        """What was taken, in order."""
        found = [json.loads(each) for each in self._taken]
        return [
            (int(each["sequence"]), _payload(each))
            for each in found
            if (each["source"], each["penstockpartition"]) == (source(topic), partition)
        ]

    def restart(self) -> None:
        """Its connections are closed: each of the next calls meets one."""
        self.receiver.answer = _close_each(self._take)

    def too_large(self) -> int:
        """It answers 413."""
        return _LARGE

    def wrong(self, topic: str) -> tuple[str, str]:
        """Without a secret."""
        return "webhook+https://localhost/in", "would not be signed"

    def _take(self, call: Call) -> Says:
        if len(call.body) > _LARGE:
            return Says(413)
        self._taken.append(call.body)
        return Says()


def _close_each(take: Any) -> Any:
    closed: set[str] = set()

    def answer(call: Call) -> Says:
        if call.headers["webhook-id"] not in closed and len(closed) < 1:
            closed.add(call.headers["webhook-id"])
            return Says(0)
        said: Says = take(call)
        return said

    return answer


class OnQueue(OnlyTakes):
    """A FIFO queue of SQS."""

    name = "sqs"
    fixture = "sqs"

    def __init__(self, endpoint: str) -> None:
        self.queue = Queue(endpoint, fifo=True)
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
        """AWS does not stop."""

    def too_large(self) -> int:
        """It takes one mebibyte."""
        return _LARGE

    def wrong(self, topic: str) -> tuple[str, str]:
        """A queue that is not there."""
        return f"sqs://eu-central-1/none?endpoint={self.queue.endpoint}", "check the region"


class OnRabbitMQ(OnlyTakes):
    """A RabbitMQ, and a queue for everything."""

    name = "rabbitmq"
    fixture = "rabbit"

    def __init__(self, rabbit: Rabbit) -> None:
        self.rabbit = rabbit
        self.queue = rabbit.queue()
        self.address = rabbit.address(f"queue={self.queue}")
        self.away = "amqp://127.0.0.1:1/?queue=q"

    def sink(self) -> Sink:
        """With the login."""
        return self.rabbit.sink(f"queue={self.queue}")

    def stored(self, topic: str, known_as: str, partition: int) -> list[Stored]:
        """What is in the queue, in order.  It stays there."""
        found = [(each.headers, body) for each, body in self.rabbit.read(self.queue, keep=True)]
        return [
            (int(headers["cloudEvents_sequence"]), body)
            for headers, body in found
            if headers["cloudEvents_source"] == source(topic)
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


def _payload(line: Mapping[str, Any]) -> bytes:
    if "data_base64" in line:
        return base64.b64decode(line["data_base64"])
    return json.dumps(line["data"]).encode()
