"""Sinks that only take, behind relays that are killed and paused.

Nothing is lost, and what is doubled lies in blocks that were open.
"""

from __future__ import annotations

import base64
import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from ops.relay.relay import Relay
from ops.sinks.address import open_sink
from penstock import subscriptions
from penstock.subscriptions.dead_letters import dead_letters
from tests.relay.aws_server import Queue
from tests.relay.chaos import PARTITIONS, SUBSCRIPTION, Chaos, chaos
from tests.relay.rabbits import LOGIN, Rabbit
from tests.relay.receivers import Call, Receiver, Says, receiving

TOPIC = "bank/accounts"
LARGEST_BLOCK = 800

Connection = psycopg.Connection[tuple[Any, ...]]
#: What came of each partition: sequence and payload, in the order in which it came.
Found = list[list[tuple[int, bytes]]]


@dataclass(frozen=True)
class Hook:
    """A log whose relay calls a receiver."""

    log: Chaos
    receiver: Receiver

    def found(self) -> Found:
        """What the receiver was sent."""
        return of_bodies([call.body for call in self.receiver.calls])


@pytest.fixture
def hook(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hook]:
    """A log and a receiver; the relay's processes have its secret."""
    with receiving() as receiver:
        for name, value in receiver.environ().items():
            monkeypatch.setenv(name, value)
        with chaos(connection, database_url, topic=TOPIC, sink=receiver.address) as log:
            yield Hook(log, receiver)


def of_bodies(bodies: list[bytes]) -> Found:
    """Structured CloudEvents as sequences and payloads."""
    found: Found = [[] for _ in range(PARTITIONS)]
    for body in bodies:
        event = json.loads(body)
        payload = base64.b64decode(event["data_base64"])
        found[event["penstockpartition"]].append((int(event["sequence"]), payload))
    return found


def doubled_within_blocks(log: Chaos, found: Found) -> int:
    """How many were doubled, after it was checked that they lie in open blocks, in order.

    Each kill and each pause can leave one open block of each partition.
    """
    doubled = 0
    for partition, came in enumerate(found):
        assert sorted(set(came)) == log.expected(partition), "lost or changed"
        firsts = list(dict.fromkeys(came))
        assert firsts == sorted(firsts), "out of order"
        again = sorted(sequence for (sequence, _), count in Counter(came).items() if count > 1)
        starts = [n for n in again if n - 1 not in again]
        assert len(starts) <= log.kills + log.pauses
        assert len(again) <= LARGEST_BLOCK * (log.kills + log.pauses)
        doubled += len(came) - len(set(came))
    logging.getLogger(__name__).warning(
        "%d doubled of %d, %d kills, %d pauses", doubled, log.published, log.kills, log.pauses
    )
    return doubled


def test_a_webhook_loses_nothing_and_doubles_within_the_open_block(hook: Hook) -> None:
    hook.log.publish(2_000)
    hook.log.run(kills=2, pauses=1)
    doubled_within_blocks(hook.log, hook.found())


@pytest.mark.usefixtures("aws_login")
def test_a_queue_of_sqs_loses_nothing_too(
    connection: Connection, database_url: str, endpoint: str
) -> None:
    """Few events: the server of the tests needs longer for each that is there already."""
    queue = Queue(endpoint)
    with chaos(connection, database_url, topic=TOPIC, sink=queue.address) as log:
        log.publish(200)
        log.run(kills=1)
        # A queue keeps no order, so the test puts them in one.
        bodies = [each["Body"].encode() for each in queue.read()]
        doubled_within_blocks(log, [sorted(each) for each in of_bodies(bodies)])


def test_rabbitmq_too(
    connection: Connection, database_url: str, rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)
    queue = rabbit.queue()
    address = rabbit.address(f"queue={queue}")
    with chaos(connection, database_url, topic=TOPIC, sink=address) as log:
        log.publish(4_000)
        log.run(kills=2, pauses=1)
        found: Found = [[] for _ in range(PARTITIONS)]
        for properties, body in rabbit.read(queue):
            place = int(properties.headers["cloudEvents_penstockpartition"])
            found[place].append((int(properties.headers["cloudEvents_sequence"]), body))
        doubled_within_blocks(log, found)


def test_a_refused_event_is_a_dead_letter_and_the_others_come_once(
    hook: Hook, connection: Connection, database_url: str
) -> None:
    hook.log.publish(200)

    def answer(call: Call) -> Says:
        return (
            Says(422, {}, b"no such account")
            if json.loads(call.body)["sequence"][-2:] == "50"
            else Says()
        )

    hook.receiver.answer = answer
    sink = open_sink(hook.log.sink, environ=hook.receiver.environ())
    result = Relay(database_url, SUBSCRIPTION, sink).run_for(60)
    assert (result.events, result.dead_letters, result.drained) == (198, 2, True)
    assert doubled_within_blocks(hook.log, hook.found()) == 0
    letters = dead_letters(connection, SUBSCRIPTION)
    assert [letter.sequence for letter in letters] == [50, 50]
    assert "answered 422 Unprocessable" in letters[0].reason
    assert "(no such account)" in letters[0].reason


def test_a_receiver_that_is_gone_pauses_the_relay(
    hook: Hook, connection: Connection, database_url: str
) -> None:
    hook.log.publish(20)
    hook.receiver.answer = lambda _: Says(410)
    sink = open_sink(hook.log.sink, environ=hook.receiver.environ())
    result = Relay(database_url, SUBSCRIPTION, sink).run_for(1)
    assert result.events == 0
    assert "answered 410 Gone" in result.last_error
    assert len(hook.receiver.calls) <= PARTITIONS
    subscriptions.resume(connection, SUBSCRIPTION)
    hook.receiver.answer = lambda _: Says()
    assert Relay(database_url, SUBSCRIPTION, sink).run_for(60).events == 20
