"""The Redis sink alone, against a real server."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ops.sinks import redis_streams
from ops.sinks.base import EventRefused, SinkMisconfigured, SinkUnavailable
from ops.sinks.ends import SinkBehind
from ops.sinks.redis_streams import RedisChannel, open_sink
from penstock.errors import ConfigurationError
from penstock.log.restores import Seen
from penstock.records import Event
from tests.kit import certificates
from tests.kit.proof import proves
from tests.relay.blocks import TOPIC, block, event, lease
from tests.relay.stores import Streams, StreamsServer, ids

_numbers = itertools.count(1)


@pytest.fixture
def streams(streams_server: StreamsServer) -> Streams:
    """Streams that nobody else has."""
    return Streams(streams_server, f"test-{next(_numbers)}")


def test_an_entry_has_the_event_and_its_attributes(streams: Streams) -> None:
    channel = streams.channel()
    assert channel.seen() is None
    channel.send_block(block(1, 3))
    channel.send_block(block(4, 4))
    assert channel.seen() == Seen(4, 1)
    found = dict(streams.server.entries(streams.stream))
    assert list(found) == ids(1, 4)
    fields = found["1-2"]
    assert fields[b"data"] == event(2).payload
    assert fields[b"ce_id"].decode() == str(event(2).event_id)
    assert fields[b"ce_partitionkey"] == b"account-2"
    assert fields[b"penstock_relay"] == b"to-the-sink"


@proves("a sink that was changed is not continued")
def test_a_successor_completes_the_block_and_who_is_late_writes_nothing(streams: Streams) -> None:
    late, first = streams.channel(), streams.channel()
    assert late.seen() is None
    first.send_block(block(1, 1_200))
    successor = streams.channel(lease_epoch=2)
    successor.send_block(block(1, 1_700, reopened=True))  # of another length: it was half sent
    with pytest.raises(SinkUnavailable, match=r"ends at 1-1700, not at 0-0"):
        late.send_block(block(1, 1_200, reopened=True))
    successor.send_block(block(1_701, 1_800))
    assert streams.ids() == ids(1, 1_800)


def test_events_that_were_given_up_are_passed(streams: Streams) -> None:
    """Without them the next block would look as if something was lost."""
    channel = streams.channel()
    nothing = dataclasses.replace(block(1, 5), events=())
    channel.send_block(nothing)
    assert streams.channel().seen() == Seen(5, 1)
    given_up = block(6, 10)
    channel.send_block(dataclasses.replace(given_up, events=given_up.events[:3]))
    successor = streams.channel()
    successor.send_block(block(11, 12))
    assert streams.ids() == [*ids(6, 8), *ids(11, 12)]


@proves("a sink that was changed is not continued")
def test_a_foreign_writer_is_told(streams: Streams) -> None:
    channel = streams.channel()
    channel.send_block(block(1, 10))
    streams.server.client.xadd(streams.stream, {"hello": "world"})
    with pytest.raises(SinkUnavailable, match="the stream was changed"):
        channel.send_block(block(11, 20))
    with pytest.raises(SinkMisconfigured, match="entries of another program"):
        streams.channel().send_block(block(11, 20, reopened=True))
    assert streams.ids()[:-1] == ids(1, 10)


@proves("a sink that was changed is not continued")
def test_memory_that_runs_out_leaves_no_hole(streams: Streams) -> None:
    client = streams.server.client
    channel = streams.channel()
    channel.send_block(block(1, 100))
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory", used + 1_500_000)
    try:
        with pytest.raises(SinkUnavailable, match="OutOfMemory"):
            channel.send_block(block(101, 12_000))
        some = len(streams.ids())
        assert 100 < some < 12_000
    finally:
        client.config_set("maxmemory", 0)
    streams.channel().send_block(block(101, 12_000, reopened=True))
    assert streams.ids() == ids(1, 12_000)


def _delete_under_a_lease(streams: Streams) -> RedisChannel:
    channel = streams.channel()
    channel.send_block(block(1, 10))
    streams.server.client.delete(streams.stream)
    return channel


@proves("a sink that was changed is not continued")
def test_a_deleted_stream_is_told_and_events_after_the_gap_are_not_sent(streams: Streams) -> None:
    channel = _delete_under_a_lease(streams)
    with pytest.raises(SinkUnavailable, match="ends at 0-0, not at 1-10"):
        channel.send_block(block(11, 20))
    again = streams.channel()
    said = "up to sequence 0, and the relay to-the-sink is at 11"
    with pytest.raises(SinkBehind, match=said) as caught:
        again.send_block(block(11, 20, reopened=True))
    caught.value.skip()
    again.send_block(block(11, 20, reopened=True))
    assert streams.ids() == ids(11, 20)


@proves("a sink that was changed is not continued", guard="the comparison")
def test_without_the_comparison_a_deleted_stream_goes_on_with_a_gap(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = "if present ~= ARGV[1] then return {0, present} end"
    assert guard in redis_streams.APPEND
    monkeypatch.setattr(redis_streams, "APPEND", redis_streams.APPEND.replace(guard, ""))
    _delete_under_a_lease(streams).send_block(block(11, 20))
    assert streams.ids() == ids(11, 20)


def test_what_lies_ahead_of_the_log_stops_the_relay(streams: Streams) -> None:
    streams.channel().send_block(block(1, 10, history=2))
    with pytest.raises(SinkMisconfigured, match="has events of history 2"):
        streams.channel().send_block(block(1, 10))
    with pytest.raises(SinkMisconfigured, match="has sequence 10"):
        streams.channel().send_block(block(1, 5, history=2))
    others = dataclasses.replace(
        block(6, 20, history=2), events=tuple(event(n, topic="x") for n in range(6, 21))
    )
    with pytest.raises(SinkMisconfigured, match="has another event of sequence 10"):
        streams.channel().send_block(others)
    streams.channel(history=3).send_block(block(11, 12, history=3))
    assert streams.ids() == [*ids(1, 10, 2), *ids(11, 12, 3)]


def test_a_block_that_was_open_when_a_history_began_is_sent_once(streams: Streams) -> None:
    streams.channel().send_block(block(1, 500))
    successor = streams.channel(history=2)
    successor.send_block(block(1, 700, reopened=True, history=2))
    assert streams.ids() == [*ids(1, 500), *ids(501, 700, 2)]


def test_a_stream_of_another_relay_or_topic_is_refused(streams: Streams) -> None:
    streams.channel(relay="other").send_block(block(1, 2, relay="other"))
    with pytest.raises(SinkMisconfigured, match="another program, relay or topic"):
        streams.channel().seen()


def test_trimmed_streams_go_on(streams: Streams) -> None:
    channel = streams.channel("?maxlen=100")
    channel.send_block(block(1, 2_000))
    assert 100 <= len(streams.ids()) < 500
    streams.server.client.xtrim(streams.stream, maxlen=0)
    streams.channel().send_block(block(2_001, 2_002))
    assert streams.ids() == ids(2_001, 2_002)


def test_preflight_says_what_to_set(streams: Streams) -> None:
    client = streams.server.client
    sink = streams.sink()
    sink.preflight(TOPIC, 2)
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(SinkMisconfigured, match="allkeys-lru") as caught:
            sink.preflight(TOPIC, 2)
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    assert "noeviction" in caught.value.hint
    client.config_set("appendonly", "no")
    try:
        with pytest.raises(SinkMisconfigured, match="forgets events") as caught:
            sink.preflight(TOPIC, 2)
        streams.sink("?volatile=true").preflight(TOPIC, 2)
    finally:
        client.config_set("appendonly", "yes")
    assert "appendonly yes" in caught.value.hint
    client.set(streams.stream, "x")
    with pytest.raises(SinkMisconfigured, match="is no stream"):
        sink.preflight(TOPIC, 2)


def test_a_login_comes_from_the_environment_or_a_file(streams: Streams, tmp_path: Path) -> None:
    client = streams.server.client
    client.acl_setuser(
        "relay", enabled=True, passwords=["+s3cret"], keys=["*"],
        commands=["+@stream", "+@scripting", "+info", "+type", "+exists"],
    )  # fmt: skip
    login = {"PENSTOCK_REDIS_USERNAME": "relay"}
    with pytest.raises(SinkMisconfigured, match="refuses the relay's login") as caught:
        streams.sink(**login, PENSTOCK_REDIS_PASSWORD="wr0ng").preflight(TOPIC, 1)
    assert "wr0ng" not in f"{caught.value} {caught.value.hint}"
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    for given in (
        {"PENSTOCK_REDIS_PASSWORD": "s3cret"},
        {"PENSTOCK_REDIS_PASSWORD_FILE": str(file)},
    ):
        sink = streams.sink(**login, **given)
        sink.preflight(TOPIC, 1)
        sink.open(lease()).send_block(block(1, 5))
    assert streams.ids() == ids(1, 5)
    with pytest.raises(SinkMisconfigured, match="PENSTOCK_REDIS_PASSWORD_FILE names"):
        streams.sink(PENSTOCK_REDIS_PASSWORD_FILE="/nowhere")


def test_both_sides_prove_themselves_by_certificates(tmp_path: Path) -> None:
    made = certificates.make(tmp_path)
    more = ("--tls-ca-cert-file", made.authority, "--tls-cert-file", made.server[0],
            "--tls-key-file", made.server[1])  # fmt: skip
    with StreamsServer(tmp_path / "tls", *map(str, more), tls=True) as server:
        address = urlsplit(f"rediss://127.0.0.1:{server.port}/x")
        trusted = {"PENSTOCK_REDIS_CA_FILE": str(made.authority)}
        client = {
            "PENSTOCK_REDIS_CERTIFICATE_FILE": str(made.client[0]),
            "PENSTOCK_REDIS_KEY_FILE": str(made.client[1]),
        }
        open_sink(address, environ=trusted | client, beside="").preflight(TOPIC, 1)
        for environ in (trusted, client):
            with pytest.raises(SinkUnavailable):
                open_sink(address, environ=environ, beside="").preflight(TOPIC, 1)
    with pytest.raises(SinkMisconfigured, match="PENSTOCK_REDIS_CA_FILE"):
        open_sink(address, environ={"PENSTOCK_REDIS_CA_FILE": "/nowhere"}, beside="")


def test_a_server_that_has_gone_is_unavailable(streams: Streams) -> None:
    channel = streams.channel()
    channel.send_block(block(1, 5))
    streams.server.restart(lose=True)
    with pytest.raises(SinkUnavailable):
        channel.send_block(block(6, 7))
    with pytest.raises(SinkBehind):
        streams.channel().send_block(block(6, 7, reopened=True))


WRONG: dict[str, str] = {
    "redis:///x": "names no server",
    "redis://host:port/x": "names no server",
    "redis://host/x?db=a": "db=, which is no whole number from 0",
    "redis://host/x?maxlen=0": "maxlen=, which is no whole number from 1",
    "redis://host/x?resend=yes": "resend=, which is neither true nor false",
    "redis://host/x?colour=red": "not known: colour",
}


@pytest.mark.parametrize("address", WRONG)
def test_what_is_wrong_with_an_address_is_said(address: str) -> None:
    with pytest.raises(ConfigurationError, match=WRONG[address]):
        open_sink(urlsplit(address), environ={}, beside="")


def test_a_sink_beside_has_streams_of_its_own(streams: Streams) -> None:
    beside = open_sink(urlsplit("redis://h/a"), environ={}, beside="backfill-7")
    assert beside.stream("b/c", 3) == "a.backfill-7:b/c:3"


def test_an_event_with_too_many_headers_is_refused_and_many_are_taken(streams: Streams) -> None:
    """Lua hands a command about 8,000 values. Guard: _ENTRY_TEXTS; and chunks by their texts."""

    def many(sequence: int, count: int) -> Event:
        return event(sequence, headers={f"h{each}": "x" for each in range(count)})

    events = [event(1), many(2, 4_100), *(many(each, 3_800) for each in range(3, 33))]
    whole = dataclasses.replace(block(1, 32), events=tuple(events))
    channel = streams.channel()
    with pytest.raises(EventRefused, match="fields with its headers") as refused:
        channel.send_block(whole)
    assert refused.value.sequence == 2
    assert streams.ids() == []
    channel.send_block(dataclasses.replace(whole, events=(events[0], *events[2:])))
    assert streams.ids() == ["1-1", *ids(3, 32)]


def test_without_the_limit_redis_fails_for_ever(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant."""
    monkeypatch.setattr(redis_streams, "_ENTRY_TEXTS", 1 << 20)
    with pytest.raises(SinkUnavailable, match="too many results to unpack"):
        test_an_event_with_too_many_headers_is_refused_and_many_are_taken(streams)
