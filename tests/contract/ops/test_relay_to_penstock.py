"""Another Penstock database as a sink: the target on every engine."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import psycopg
import pytest

from ops.relay.relay import Relay
from ops.relay.results import RelayResult
from ops.sinks import penstock_log
from ops.sinks.base import EventRefused, SinkMisconfigured, SinkUnavailable
from ops.sinks.ends import SinkBehind
from ops.sinks.penstock_log import ORIGIN, PenstockChannel, PenstockSink, open_sink
from penstock import database, log
from penstock.errors import ConfigurationError
from penstock.log.restores import Seen
from penstock.publishing.publish import publish
from penstock.records import Event
from penstock.subscriptions import stream
from penstock.topics import names
from tests.conftest import _fresh
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count
from tests.contract.ops.test_relay import FAST
from tests.contract.stream_kit import Guard, without
from tests.kit.log import drain, topic
from tests.kit.proof import proves
from tests.relay.blocks import TOPIC, block, event, lease
from tests.support import PostgresServer

A = "aaaaaaaa-0000-0000-0000-000000000000"

#: Whoever comes publishes, whatever has come before.
NOT_COMPARED: Guard = {
    "postgres": ("publish_relayed", "    IF moved THEN", "    moved := true;\n    IF moved THEN"),
    "mysql": (
        "publish_relayed",
        "IF is_expected THEN",
        "SET is_expected = TRUE; IF is_expected THEN",
    ),
}


def sink_of(url: str, options: str = "", **changes: str) -> PenstockSink:
    """A sink on a database, with its login from the environment."""
    parts = urlsplit(url)
    scheme = "mysql" if parts.scheme == "mysql" else "postgresql"
    address = f"penstock+{scheme}://{parts.hostname}:{parts.port}{parts.path}{options}"
    login = {
        "PENSTOCK_SINK_USERNAME": unquote(parts.username or ""),
        "PENSTOCK_SINK_PASSWORD": unquote(parts.password or ""),
    }
    return open_sink(urlsplit(address), environ=login | changes, beside="")


class Target:
    """The database that is relayed to."""

    def __init__(self, db: ContractDatabase) -> None:
        self.db = db
        self.own: Any = db.connect()
        self.opened: list[PenstockChannel] = []
        topic(self.own, 1, TOPIC)

    def channel(self, **changes: Any) -> PenstockChannel:
        """A channel of a lease."""
        given = {"installation": A} | changes
        self.opened.append(sink_of(self.db.url).open(lease(**given)))
        return self.opened[-1]

    def events(self, partition: int = 0, name: str = TOPIC) -> list[Event]:
        """Everything in a partition."""
        drain(self.own)
        return log.fetch(self.own, name, partition, 1, 10_000)

    def numbers(self) -> list[int]:
        """The sequences that the events had in their own database."""
        return [each.headers[ORIGIN]["sequence"] for each in self.events()]


@pytest.fixture
def target(db: ContractDatabase) -> Iterator[Target]:
    """With a topic of one partition."""
    made = Target(db)
    yield made
    for each in made.opened:
        each.close()


def test_an_event_keeps_what_it_has(target: Target) -> None:
    channel = target.channel()
    assert channel.seen() is None
    odd = event(2, headers={"a": 1}, key="", type="")
    channel.send_block(dataclasses.replace(block(1, 2), events=(event(1), odd)))
    assert target.channel().seen() == channel.seen() == Seen(2, 1)
    first, second = target.events()
    assert (first.event_id, first.key, first.type) == (event(1).event_id, "account-1", "moved")
    assert (first.payload, first.content_type) == (event(1).payload, "application/json")
    assert second.headers["a"] == 1
    assert second.headers[ORIGIN] == {
        "topic": TOPIC, "partition": 0, "sequence": 2, "history": 1, "through": [A],
        "created_at": event(2).created_at.isoformat(),
    }  # fmt: skip


def _one_is_late(target: Target) -> None:
    late, first = target.channel(), target.channel()
    assert late.seen() is None
    first.send_block(block(1, 300))
    successor = target.channel(lease_epoch=2)
    successor.send_block(block(1, 500, reopened=True))  # of another length: it was half sent
    with pytest.raises(SinkUnavailable, match="at sequence 500 of history 1, not at 0 of 0"):
        late.send_block(block(1, 300, reopened=True))
    successor.send_block(block(501, 510))
    assert target.numbers() == list(range(1, 511))


@proves("another database gets each event once")
def test_a_successor_completes_the_block_and_who_is_late_publishes_nothing(target: Target) -> None:
    _one_is_late(target)


@proves("another database gets each event once", guard="the comparison")
def test_without_the_comparison_a_late_relay_doubles(target: Target) -> None:
    without(target.db, NOT_COMPARED)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        _one_is_late(target)


@proves("another database gets each event once")
def test_two_at_once_publish_a_block_once(target: Target) -> None:
    """The second waits for the first at the row, and then finds another place."""
    channels = [target.channel(), target.channel()]
    assert [each.seen() for each in channels] == [None, None]
    late: list[Exception] = []

    def send(channel: PenstockChannel) -> None:
        try:
            channel.send_block(block(1, 200))
        except SinkUnavailable as error:
            late.append(error)

    threads = [threading.Thread(target=send, args=(each,)) for each in channels]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(late) == 1
    assert target.numbers() == list(range(1, 201))


def test_large_blocks_go_in_parts(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penstock_log, "_CHUNK", 100)
    target.channel().send_block(block(1, 250))
    given_up = dataclasses.replace(block(251, 260), events=())
    target.channel().send_block(given_up)
    target.channel().send_block(block(261, 262))
    assert target.numbers() == [*range(1, 251), 261, 262]


def test_a_target_that_was_put_back_is_behind(target: Target) -> None:
    target.channel().send_block(block(1, 10))
    channel = target.channel()
    with pytest.raises(SinkBehind, match="up to sequence 10, and the relay to-the-sink is at 21"):
        channel.send_block(block(21, 22))
    with pytest.raises(SinkMisconfigured, match="has sequence 10"):
        target.channel().send_block(block(1, 5))
    other = event(10, topic="x")
    with pytest.raises(SinkMisconfigured, match="has another event of sequence 10"):
        target.channel().send_block(dataclasses.replace(block(10, 10), events=(other,)))
    target.channel(installation="b").send_block(block(1, 1))
    target.channel(relay="second").send_block(block(1, 1))
    target.channel(partition=1).send_block(block(1, 1))
    assert count(target.db, "relay_arrivals") == 4
    names.delete_topic(target.own, TOPIC)
    assert count(target.db, "relay_arrivals") == 0


def test_an_event_that_the_target_does_not_take_is_refused(target: Target) -> None:
    large = event(2, payload=b"x" * 2_000_000)
    events = (event(1), large, event(3))
    with pytest.raises(EventRefused) as caught:
        target.channel().send_block(dataclasses.replace(block(1, 3), events=events))
    assert caught.value.sequence == 2
    assert target.events() == []
    assert target.channel().seen() is None


def test_partitions_are_kept_or_chosen_by_the_key(db: ContractDatabase) -> None:
    own = db.connect()
    topic(own, 3, TOPIC)
    topic(own, 2, f"few/{TOPIC}")
    for options, partitions in (("", 3), ("?prefix=few", 3)):
        sink = sink_of(db.url, options)
        sink.preflight(TOPIC, partitions)
        channel = sink.open(lease(installation=A, partition=2))
        keyless = event(1, partition=2, key="")
        keyed = [event(number, partition=2) for number in range(2, 30)]
        channel.send_block(dataclasses.replace(block(1, 29), partition=2, events=(keyless, *keyed)))
        channel.close()
    drain(own)
    assert len(log.fetch(own, TOPIC, 2, 1, 100)) == 29
    few = [log.fetch(own, f"few/{TOPIC}", each, 1, 100) for each in (0, 1)]
    assert few[0][0].event_id == event(1).event_id
    keys = [{each.key for each in part if each.key} for part in few]
    assert len(keys[0] | keys[1]) == 7
    assert keys[0].isdisjoint(keys[1])


def test_preflight_makes_the_topic_or_says_how(db: ContractDatabase) -> None:
    with pytest.raises(SinkMisconfigured, match='no topic "bank/accounts"') as caught:
        sink_of(db.url).preflight(TOPIC, 4)
    assert "create=true" in (caught.value.hint or "")
    sink_of(db.url, "?create=true&prefix=copies").preflight(TOPIC, 4)
    assert len(names.describe_topic(db.connect(), f"copies/{TOPIC}").partitions) == 4
    with pytest.raises(SinkMisconfigured) as wrong:
        sink_of(db.url, PENSTOCK_SINK_PASSWORD="wr0ng", PENSTOCK_SINK_USERNAME="no").connect()
    assert "wr0ng" not in f"{wrong.value}"
    assert "PENSTOCK_SINK_PASSWORD" in (wrong.value.hint or "")


@pytest.fixture
def other_url(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    """A second database, on PostgreSQL: another installation than the one it was copied from."""
    for url in _fresh(postgres_server, migrated_template):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("UPDATE penstock.installation SET id = gen_random_uuid()")
        yield url


def _relayed(source: str, target: str, options: str = "") -> RelayResult:
    sink = sink_of(target, options)
    result = Relay(source, "there", sink, backoff=FAST, idle_seconds=0.01).run_for(20)
    assert result.failures == 0, result.last_error
    return result


def _to_each_other(db: ContractDatabase, other_url: str) -> list[list[Event]]:
    here = db.connect()
    with psycopg.connect(other_url, autocommit=True) as there:
        for own, text in ((here, b"here"), (there, b"there")):
            topic(own, 2, TOPIC)
            stream.subscribe(own, "there", [TOPIC])
            for number in range(10):
                publish(own, TOPIC, text, key=str(number))
            drain(own)
        for _ in range(2):
            _relayed(db.url, other_url)
            drain(there)
            _relayed(other_url, db.url)
            drain(here)
        return [
            [each for part in (0, 1) for each in log.fetch(own, TOPIC, part, 1, 100)]
            for own in (here, there)
        ]


@proves("another database gets each event once")
def test_two_databases_relay_to_each_other(db: ContractDatabase, other_url: str) -> None:
    """Each event is in both, once."""
    for found in _to_each_other(db, other_url):
        assert len(found) == len({each.event_id for each in found}) == 20


@proves("another database gets each event once", guard="penstock-origin")
def test_without_the_header_they_go_in_circles(
    db: ContractDatabase, other_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(penstock_log, "_through", lambda _: [])
    here, there = _to_each_other(db, other_url)
    assert len(here) + len(there) > 40


def test_a_topic_is_not_its_own_sink(db: ContractDatabase) -> None:
    own = db.connect()
    topic(own, 1, TOPIC)
    here = str(database.call(own, "installation_id")[0][0])
    channel = sink_of(db.url).open(lease(installation=here))
    with pytest.raises(SinkMisconfigured, match='the sink is the topic "bank/accounts" itself'):
        channel.seen()
    channel.close()


WRONG: dict[str, str] = {
    "penstock+postgresql:///x": "names no server, or no database",
    "penstock+mysql://host": "names no server, or no database",
    "penstock+mysql://host/x?create=yes": "neither true nor false",
}


@pytest.mark.parametrize("address", WRONG)
def test_what_is_wrong_with_an_address_is_said(address: str) -> None:
    with pytest.raises(ConfigurationError, match=WRONG[address]):
        open_sink(urlsplit(address), environ={}, beside="")


def test_the_rest_of_an_address_is_the_database_s() -> None:
    login = {"PENSTOCK_SINK_USERNAME": "ann", "PENSTOCK_SINK_PASSWORD": "a/b"}
    address = urlsplit("penstock+postgresql://h:1/d?sslmode=require&prefix=a")
    sink = open_sink(address, environ=login, beside="backfill-7")
    assert sink._url == f"postgresql://ann:{quote('a/b', safe='')}@h:1/d?sslmode=require"
    assert sink.target("x/y") == "a/backfill-7/x/y"
