"""The NATS sink alone, against a real server."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from ops.sinks import nats_connection, nats_jetstream
from ops.sinks.base import EventRefused, SinkMisconfigured, SinkUnavailable
from ops.sinks.ends import SinkBehind
from ops.sinks.nats_connection import NatsConnection
from ops.sinks.nats_jetstream import NatsSink, open_sink
from penstock.errors import ConfigurationError
from penstock.log.restores import Seen
from tests.kit import certificates
from tests.kit.proof import proves
from tests.relay.blocks import TOPIC, block, event, lease
from tools.servers.nats import NatsServer

_numbers = itertools.count(1)

Make = Callable[..., NatsSink]


@pytest.fixture
def make(nats_server: NatsServer) -> Iterator[Make]:
    """Makes sinks of a stream of this test's own, which are closed at the end."""
    made: list[NatsSink] = []
    name = f"test-{next(_numbers)}"

    def sink(options: str = "create=true", stream: str = name, **environ: str) -> NatsSink:
        address = f"nats://{nats_server.address}/{stream}?{options}"
        made.append(open_sink(urlsplit(address), environ=environ, beside=""))
        return made[-1]

    yield sink
    for each in made:
        each.close()


@pytest.fixture
def sink(make: Make) -> NatsSink:
    """A sink with its stream."""
    made = make()
    made.preflight(TOPIC, 1)
    return made


def stored(sink: NatsSink) -> list[dict[str, Any]]:
    """Every message of the stream, by their numbers."""
    state = sink.connection.api(f"STREAM.INFO.{sink.stream}")["state"]
    found = []
    for number in range(state["first_seq"], state["last_seq"] + 1):
        answer = sink.connection.api(f"STREAM.MSG.GET.{sink.stream}", {"seq": number})
        if "message" in answer:
            found.append(answer["message"])
    return found


def sequences(sink: NatsSink) -> list[int]:
    """The sequences of the events in the stream."""
    return [int(nats_jetstream._headers(each)["ce-sequence"]) for each in stored(sink)]


def test_a_message_has_the_event_and_its_attributes(sink: NatsSink) -> None:
    channel = sink.open(lease())
    assert channel.seen() is None
    odd = event(2, type="money moved.*", headers={"subject": "Zoë 100 %"}, key="")
    channel.send_block(dataclasses.replace(block(1, 2), events=(event(1), odd)))
    channel.send_block(block(3, 3))
    assert sink.open(lease()).seen() == channel.seen() == Seen(3, 1)
    first, second, _ = stored(sink)
    assert first["subject"] == f"{sink.stream}.{TOPIC}.0.moved"
    assert second["subject"] == f"{sink.stream}.{TOPIC}.0.money%20moved.%2A"
    headers = nats_jetstream._headers(second)
    assert headers["ce-subject"] == "Zoë 100 %"
    assert headers["ce-id"] == str(event(2).event_id)
    assert headers["penstock-relay"] == "to-the-sink"


def test_a_successor_completes_the_block_and_who_is_late_writes_nothing(make: Make) -> None:
    first, other = make(), make()
    first.preflight(TOPIC, 1)
    late, early = first.open(lease()), other.open(lease())
    assert late.seen() is None
    early.send_block(block(1, 1_500))
    successor = other.open(lease(lease_epoch=2))
    successor.send_block(block(1, 2_200, reopened=True))  # of another length: it was half sent
    with pytest.raises(SinkUnavailable, match="do not end at message 0"):
        late.send_block(block(1, 1_500, reopened=True))
    successor.send_block(block(2_201, 2_300))
    assert sequences(first) == list(range(1, 2_301))


@proves("a sink that was changed is not continued", guard="the comparison")
def test_without_the_expectation_a_late_relay_doubles(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = NatsConnection.send

    def careless(self: NatsConnection, messages: Any, calls: Any = None) -> Any:
        for name in [each for each in messages[0][1] if each.startswith("Nats-Expected")]:
            del messages[0][1][name]
        return original(self, messages)

    monkeypatch.setattr(NatsConnection, "send", careless)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_successor_completes_the_block_and_who_is_late_writes_nothing(make)


def test_partitions_of_one_stream_do_not_disturb_each_other(sink: NatsSink) -> None:
    one, two = sink.open(lease()), sink.open(lease(partition=1))
    for first in (1, 101, 201):
        one.send_block(block(first, first + 99))
        two.send_block(block(first, first + 99, partition=1))
    assert sorted(sequences(sink)) == sorted([*range(1, 301)] * 2)


@proves("a sink that was changed is not continued")
@pytest.mark.parametrize("is_stored", [True, False])
def test_a_batch_with_a_lost_answer_is_stored_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    """Whether it came before or after the next relay has looked."""
    sink, other = make(), make()
    sink.preflight(TOPIC, 1)
    held: list[Any] = []
    original = NatsConnection.send

    def lost(self: NatsConnection, messages: Any, calls: Any = None) -> Any:
        held.append(original(self, messages) if is_stored else messages)
        raise SinkUnavailable("NATS did not answer")

    with monkeypatch.context() as patch, pytest.raises(SinkUnavailable):
        patch.setattr(NatsConnection, "send", lost)
        sink.open(lease()).send_block(block(1, 600))
    successor = other.open(lease(lease_epoch=2))
    assert successor.seen() == (Seen(600, 1) if is_stored else None)
    if not is_stored:  # it comes when the successor has looked
        sink.connection.send(held[0])
        with pytest.raises(SinkUnavailable, match="do not end at message 0"):
            successor.send_block(block(1, 600, reopened=True))
        successor = other.open(lease(lease_epoch=2))
    successor.send_block(block(1, 600, reopened=True))
    successor.send_block(block(601, 610))
    assert sequences(sink) == list(range(1, 611))


@proves("a sink that was changed is not continued")
def test_half_a_batch_is_nothing(sink: NatsSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender died in the middle: what it sent is not there, also not later."""
    original = NatsConnection._send

    async def half(self: NatsConnection, messages: Any) -> Any:
        client = await self._connected()
        for subject, headers, payload in messages[:100]:
            await client.publish(subject, payload, headers=headers)
        await client.flush()
        raise OSError("killed")

    with monkeypatch.context() as patch, pytest.raises(SinkUnavailable):
        patch.setattr(NatsConnection, "_send", half)
        sink.open(lease()).send_block(block(1, 200))
    assert original is NatsConnection._send
    sink.open(lease()).send_block(block(1, 200, reopened=True))
    assert sequences(sink) == list(range(1, 201))


def test_events_that_were_given_up_are_passed(sink: NatsSink) -> None:
    channel = sink.open(lease())
    channel.send_block(dataclasses.replace(block(1, 5), events=()))
    channel.send_block(dataclasses.replace(block(6, 10), events=block(6, 8).events))
    channel.send_block(block(11, 12))
    assert sequences(sink) == [6, 7, 8, 11, 12]


def test_a_foreign_writer_is_told(sink: NatsSink) -> None:
    channel = sink.open(lease())
    channel.send_block(block(1, 10))
    sink.connection.send([(f"{sink.subjects(TOPIC, 0)}.x", {}, b"hello")])
    with pytest.raises(SinkUnavailable, match="somebody else has written to them"):
        channel.send_block(block(11, 20))
    with pytest.raises(SinkMisconfigured, match="messages of another program"):
        sink.open(lease()).send_block(block(11, 20, reopened=True))
    assert len(stored(sink)) == 11


@proves("a sink that was changed is not continued")
def test_a_purged_stream_is_told_and_one_with_limits_goes_on(sink: NatsSink) -> None:
    channel = sink.open(lease())
    channel.send_block(block(1, 10))
    sink.connection.api(f"STREAM.PURGE.{sink.stream}")
    with pytest.raises(SinkUnavailable):
        channel.send_block(block(11, 20))
    with pytest.raises(SinkBehind, match="up to sequence 0, and the relay to-the-sink is at 11"):
        sink.open(lease()).send_block(block(11, 20))
    config = sink.configuration() or {}
    sink.connection.api(f"STREAM.UPDATE.{sink.stream}", config | {"max_age": 3_600 * 10**9})
    limited = sink.open(lease())
    with pytest.raises(SinkMisconfigured, match="cannot tell whether 11 to 20 were sent"):
        limited.send_block(block(11, 20, reopened=True))
    assert limited.seen() is None
    limited.send_block(block(11, 20))
    assert sequences(sink) == list(range(11, 21))
    # What came later than the oldest message of the stream would still be there.
    late = event(5, sequenced_at=datetime.now(UTC) + timedelta(minutes=2), partition=1)
    other = dataclasses.replace(block(5, 5, reopened=True, partition=1), events=(late,))
    sink.open(lease(partition=1)).send_block(other)


def test_a_gap_that_was_meant_is_skipped(sink: NatsSink) -> None:
    channel = sink.open(lease())
    channel.send_block(block(1, 2))
    with pytest.raises(SinkBehind) as caught:
        channel.send_block(block(11, 12))
    caught.value.skip()
    channel.send_block(block(11, 12))
    assert sequences(sink) == [1, 2, 11, 12]


def test_an_event_that_is_too_large_is_refused(sink: NatsSink) -> None:
    large = event(2, payload=b"x" * (1 << 20))
    events = (event(1), large, event(3))
    with pytest.raises(EventRefused, match="the server takes") as caught:
        sink.open(lease()).send_block(dataclasses.replace(block(1, 3), events=events))
    assert caught.value.sequence == 2
    assert stored(sink) == []


def test_preflight_says_what_to_set(
    make: Make, sink: NatsSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SinkMisconfigured, match="has no stream other") as caught:
        make("", "other").preflight(TOPIC, 1)
    assert "--allow-batch" in caught.value.hint
    api = sink.connection.api
    for name, (change, said) in enumerate(WRONG_STREAMS, start=1):
        stream = f"{sink.stream}-{name}"
        config = {"name": stream, "subjects": [f"{stream}.>"], "allow_atomic": True}
        assert "error" not in api(f"STREAM.CREATE.{stream}", config | change)
        with pytest.raises(SinkMisconfigured, match=said):
            make("", stream).preflight(TOPIC, 1)
    monkeypatch.setattr(NatsConnection, "server", lambda _: ((2, 11), "2.11.4", 1 << 20))
    with pytest.raises(SinkMisconfigured, match=r"2\.11\.4, which has no atomic batches"):
        sink.preflight(TOPIC, 1)


WRONG_STREAMS: list[tuple[dict[str, Any], str]] = [
    ({"allow_atomic": False}, "takes no atomic batches"),
    ({"retention": "workqueue"}, "removes what was read"),
    ({"storage": "memory"}, "in memory"),
    ({"subjects": ["others.*.0.>"]}, "has no subjects"),
]

CONFIGURATION = """
authorization {{
  users = [
    {{ user: relay, password: "s3cret", permissions: {{
        publish: ["mine.>", "$JS.API.STREAM.>"], subscribe: "_INBOX.>" }} }}
  ]
}}
tls {{ cert_file: "{certificate}", key_file: "{key}", ca_file: "{authority}", verify: true }}
"""


def test_logins_and_certificates_come_from_the_environment(tmp_path: Path) -> None:
    made = certificates.make(tmp_path)
    text = CONFIGURATION.format(
        certificate=made.server[0], key=made.server[1], authority=made.authority
    )
    tls = {
        "PENSTOCK_NATS_CA_FILE": str(made.authority),
        "PENSTOCK_NATS_CERTIFICATE_FILE": str(made.client[0]),
        "PENSTOCK_NATS_KEY_FILE": str(made.client[1]),
        "PENSTOCK_NATS_USERNAME": "relay",
    }
    with NatsServer(tmp_path / "server", text) as server:

        def sink(prefix: str = "mine", **environ: str) -> NatsSink:
            address = f"nats+tls://{server.address}/s?create=true&prefix={prefix}"
            return open_sink(urlsplit(address), environ=environ, beside="")

        good = sink(**tls, PENSTOCK_NATS_PASSWORD="s3cret")
        good.preflight(TOPIC, 1)
        good.open(lease()).send_block(block(1, 5))
        assert sequences(good) == [1, 2, 3, 4, 5]
        good.close()
        wrong = sink(**tls, PENSTOCK_NATS_PASSWORD="wr0ng")
        with pytest.raises(SinkMisconfigured, match="refuses the relay") as caught:
            wrong.preflight(TOPIC, 1)
        assert "wr0ng" not in f"{caught.value} {caught.value.hint}"
        wrong.close()
        del wrong
        gc.collect()  # a socket that was left open is a warning, which is an error
        unproven = sink(PENSTOCK_NATS_USERNAME="relay", PENSTOCK_NATS_PASSWORD="s3cret")
        with pytest.raises(SinkUnavailable, match=r"(?i)certificate"):
            unproven.preflight(TOPIC, 1)
        unproven.close()


def test_a_login_that_may_not_publish_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_connection, "_SECONDS", 1)
    may = 'permissions: { publish: ["$JS.>"], subscribe: ">" }'
    text = f'authorization {{ users = [ {{ user: r, password: "s", {may} }} ] }}'
    with NatsServer(tmp_path / "server", text) as server:
        address = f"nats://{server.address}/s?create=true"
        environ = {"PENSTOCK_NATS_USERNAME": "r", "PENSTOCK_NATS_PASSWORD": "s"}
        sink = open_sink(urlsplit(address), environ=environ, beside="")
        sink.preflight(TOPIC, 1)
        with pytest.raises(SinkMisconfigured, match=r"(?i)permissions violation"):
            sink.open(lease()).send_block(block(1, 2))
        sink.close()


def test_a_server_that_has_gone_is_unavailable_until_it_is_back(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "server") as server:
        address = f"nats://{server.address}/s?create=true"
        sink = open_sink(urlsplit(address), environ={}, beside="")
        sink.preflight(TOPIC, 1)
        channel = sink.open(lease())
        channel.send_block(block(1, 5))
        server._wanted_port = server.port
        server.kill()
        with pytest.raises(SinkUnavailable):
            channel.send_block(block(6, 7))
        with pytest.raises(SinkUnavailable):
            sink.open(lease()).seen()
        server.start()
        sink.open(lease()).send_block(block(6, 7, reopened=True))
        assert sequences(sink) == list(range(1, 8))
        sink.close()
    assert "penstock-nats" not in {each.name for each in threading.enumerate()}


WRONG: dict[str, str] = {
    "nats:///x": "names no server, or no stream",
    "nats://host": "names no server, or no stream",
    "nats://host/a.b": "names no server, or no stream",
    "nats://host/a?prefix=b..c": "has a prefix= that cannot begin a subject",
    "nats://host/a?replicas=0": "no whole number from 1",
    "nats://host/a?colour=red": "not known: colour",
}


@pytest.mark.parametrize("address", WRONG)
def test_what_is_wrong_with_an_address_is_said(address: str) -> None:
    with pytest.raises(ConfigurationError, match=WRONG[address]):
        open_sink(urlsplit(address), environ={}, beside="")


def test_names_become_tokens_of_subjects() -> None:
    beside = open_sink(urlsplit("nats://h,i:1/a?prefix=x.y"), environ={}, beside="backfill-7")
    assert beside.subjects("b/c.d", 3) == "x.y.backfill-7.b/c%2Ed.3"
    assert nats_jetstream._servers(urlsplit("nats://h,i:1/a")) == ["nats://h:4222", "nats://i:1"]
    assert nats_jetstream._type("a..b") == "a%2E%2Eb"
    assert quote("a b", safe="") == nats_jetstream._type("a b")


def _long(sink: NatsSink, length: int, letter: str = "t") -> None:
    """Two events; the subject of the second has this length."""
    topic = letter * 3_000
    sink.preflight(topic, 1)
    kind = "y" * (length - len(sink.subjects(topic, 0)) - 1)
    events = event(1, topic=topic), event(2, topic=topic, type=kind)
    channel = sink.open(lease(topic=topic, known_as=topic))
    channel.send_block(block(1, 2, topic=topic, events=events))


def test_a_subject_that_is_too_long_is_refused(make: Make) -> None:
    """The server ends the connection when a line has more than 4,096 bytes."""
    _long(make(), nats_jetstream._SUBJECT_BYTES)
    with pytest.raises(EventRefused, match="bytes with its type") as refused:
        _long(make(), nats_jetstream._SUBJECT_BYTES + 1, "u")
    assert refused.value.sequence == 2
    with pytest.raises(SinkMisconfigured, match="longer than the server takes"):
        make().preflight("t" * 4_000, 1)


def test_without_the_limit_nats_ends_the_connection(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant."""
    monkeypatch.setattr(nats_jetstream, "_SUBJECT_BYTES", 5_000)
    with pytest.raises(SinkUnavailable):
        _long(make(), 4_100)
