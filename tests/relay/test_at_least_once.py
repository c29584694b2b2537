"""A relay whose webhook refuses an event, or wants no more."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from ops.relay.relay import Relay
from ops.sinks.address import open_sink
from penstock import subscriptions
from penstock.subscriptions.dead_letters import dead_letters
from tests.kit.proof import proves
from tests.relay.chaos import PARTITIONS, SUBSCRIPTION, Chaos, chaos
from tests.relay.receivers import Call, Receiver, Says, receiving

TOPIC = "bank/accounts"

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


@proves("a sink that only takes gets everything")
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
    assert [sorted(each) for each in hook.found()] == [
        hook.log.expected(partition) for partition in range(PARTITIONS)
    ]
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
