"""A reader that gets nothing while events wait for their sequence says why, once."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import log
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.doctor import waiting
from penstock.doctor.waiting import Silence
from penstock.errors import PermissionDenied
from penstock.leases.loop import Rounds
from penstock.publishing.publish import publish
from penstock.subscriptions import queue, stream
from tests import command
from tests.contract.cli.test_what_waits import _long_ago
from tests.contract.databases import ContractDatabase
from tests.contract.poison_kit import new_consumer
from tests.kit.log import topic, wait_until
from tests.kit.stream import STREAM, SUBSCRIPTION, Clock, running


@pytest.fixture
def stuck(db: ContractDatabase, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A connection to a log in which an event waits and nobody sequences."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    own = db.connect()
    topic(own, 1, STREAM)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    queue.subscribe(own, "mails", [STREAM])
    publish(own, STREAM, b"x")
    _long_ago(db)
    return own


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ten seconds."""
    monkeypatch.setattr(waiting, "FIRST_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(waiting, "AGAIN_SECONDS", 0.05)


def test_after_ten_seconds_it_says_what_status_says(stuck: Any) -> None:
    """Once in an hour, after a second look, and not when events come.  Guards: Silence.look."""
    clock, said = Clock(), list[str]()
    silence = Silence(said.append, clock)

    def after(*seconds: float) -> int:
        for each in seconds:
            clock.now += each
            silence.look(stuck)
        return len(said)

    assert after(9.9) == 0
    assert after(0.2) == 0  # a pass may be about to begin
    assert after(2.1) == 1
    assert "1 committed events wait" in said[0]
    assert "nobody sequences" in said[0] and "run: penstock sequence" in said[0]
    assert after(20, 2, 40, 2, 80, 2, 160, 2) == 1
    assert after(3600, 2) == 2
    log.sequence(stuck)
    assert after(3600, 3600, 2) == 2


def test_a_pass_between_the_two_looks_leaves_nothing_to_say(stuck: Any) -> None:
    """Guard: the second look."""
    clock, said = Clock(), list[str]()
    silence = Silence(said.append, clock)
    clock.now += 11
    silence.look(stuck)
    log.sequence(stuck)
    clock.now += 3
    silence.look(stuck)
    assert not said


def test_who_may_not_ask_says_nothing(stuck: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And asks no more for ten minutes."""
    asked = list[int]()

    def denied(connection: Any) -> Any:
        asked.append(1)
        raise PermissionDenied("no")

    monkeypatch.setattr(waiting, "one_look", denied)
    clock = Clock()
    silence = Silence(pytest.fail, clock)
    for _ in range(50):
        clock.now += 10
        silence.look(stuck)
    assert len(asked) == 1


@pytest.mark.parametrize("kind", ["stream", "queue"])
def test_a_consumer_warns(
    db: ContractDatabase, stuck: Any, quick: None, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Guard: Silence in Rounds; `penstock consume` and relays are such loops too."""
    consumer: Rounds = (
        new_consumer(db, handler=lambda event: None)
        if kind == "stream"
        else QueueConsumer(db.url, "mails", handler=lambda event: None, idle_seconds=0.05)
    )

    def told() -> list[str]:
        return [each.getMessage() for each in caplog.records if "receives nothing" in each.msg]

    with running(consumer):
        wait_until(told, "it warns")
        log.sequence(stuck)
        wait_until(lambda: consumer.stats.events == 1, "the event came")
    assert len(told()) == 1 and "nobody sequences" in told()[0]


def test_tail_says_so(
    stuck: Any, quick: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`penstock tail --follow` looked as if nobody published.  Guard: after_look."""
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        log.sequence(stuck)

    monkeypatch.setattr("penstock.cli.events.say", say)
    found = command.run(capsys, "tail", STREAM, "--follow", "--max", "1")
    assert found.code == 0, found.err
    assert len(said) == 1 and said[0].startswith("nothing comes: 1 committed events wait")
