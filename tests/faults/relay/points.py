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
    {"jsonl": _files, "pulsar": _pulsar, "kafka": _kafka}[sink](points)


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

    write = jsonl._write

    def halves(file: int, offset: int, lines: bytes) -> None:
        points.reach("begun")
        middle = len(lines) // 2
        write(file, offset, lines[:middle])
        points.reach("half")
        write(file, offset + middle, lines[middle:])
        points.reach("produced")
        points.soon("committing")  # the fsync follows

    def done() -> None:
        points.reach("committed")
        points.reach("sent")

    vars(jsonl)["_write"] = halves
    around(
        JsonlChannel,
        "send_block",
        before=functools.partial(points.reach, "opened"),
        after=done,
    )


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
    around(
        PulsarChannel,
        "send_block",
        before=functools.partial(points.reach, "opened"),
        after=functools.partial(points.reach, "sent"),
    )


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
    around(
        KafkaChannel,
        "send_block",
        before=functools.partial(points.reach, "opened"),
        after=functools.partial(points.reach, "sent"),
    )
