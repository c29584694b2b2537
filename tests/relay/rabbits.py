"""A RabbitMQ under test, its queues, and what is in them."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika

from ops.sinks.address import open_sink
from ops.sinks.base import Sink
from tools.servers import RabbitServer
from tools.servers.rabbitmq import PASSWORD, USER

LOGIN = {"PENSTOCK_RABBITMQ_USERNAME": USER, "PENSTOCK_RABBITMQ_PASSWORD": PASSWORD}
_numbers = itertools.count(1)


@dataclass
class Rabbit:
    """A broker under test."""

    server: RabbitServer
    authority: Path

    def connect(self) -> pika.BlockingConnection:
        """A connection of the test."""
        host, port = self.server.url().split(":")
        login = pika.PlainCredentials(USER, PASSWORD)
        return pika.BlockingConnection(
            pika.ConnectionParameters(host, int(port), credentials=login)
        )

    def queue(self, **arguments: Any) -> str:
        """A new queue."""
        name = f"events-{next(_numbers)}"
        with closing(self.connect()) as connection:
            connection.channel().queue_declare(name, durable=True, arguments=arguments)
        return name

    def address(self, query: str) -> str:
        """The address as a sink is given it."""
        return f"amqp://{self.server.url()}/?{query}"

    def sink(self, query: str, **environ: str) -> Sink:
        """A sink on it."""
        return open_sink(self.address(query), environ=LOGIN | environ)

    def read(self, queue: str, *, keep: bool = False) -> list[tuple[Any, bytes]]:
        """Properties and bodies of all that is in a queue.

        With ``keep`` they go back when the connection ends.
        """
        found = []
        with closing(self.connect()) as connection:
            channel = connection.channel()
            while (got := channel.basic_get(queue, auto_ack=not keep))[0] is not None:
                found.append((got[1], got[2]))
        return found

    def sequences(self, queue: str) -> list[int]:
        """The sequences of a queue, in its order."""
        return [int(each.headers["cloudEvents_sequence"]) for each, _ in self.read(queue)]
