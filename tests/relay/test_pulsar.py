"""The Pulsar sink alone, against a real broker."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pulsar
import pytest

from ops.sinks import pulsar_channel, pulsar_producer, tail
from ops.sinks.base import EventRefused, SinkMisconfigured, SinkUnavailable
from ops.sinks.pulsar import PulsarSink
from ops.sinks.pulsar_channel import PulsarChannel
from tests.kit.sinks import Alone
from tests.relay.blocks import block, event
from tests.relay.pulsar_broker import Broker, quiet

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

Make = Callable[..., Alone]


@pytest.fixture
def sink(pulsar_sink: Make, topic: str) -> Alone:
    """A sink whose topic has one partition."""
    made = pulsar_sink()
    made.preflight(topic, 1)
    return made


def stored(broker: Broker, sink: Alone, topic: str) -> list[int]:
    """The sequences of partition 0."""
    return broker.sequences(sink.pulsar_topic(topic), 0)


def test_an_event_with_its_attributes(broker: Broker, sink: Alone, topic: str) -> None:
    sink.send_block(block(1, 3, topic=topic))
    found = broker.read(sink.pulsar_topic(topic), 0)
    assert [each.data() for each in found] == [event(n).payload for n in (1, 2, 3)]
    assert found[1].partition_key() == "account-2"
    assert found[1].event_timestamp() == int(event(2).created_at.timestamp() * 1000)
    properties = found[1].properties()
    assert properties["ce_id"] == str(event(2, topic=topic).event_id)
    assert properties["ce_source"] == f"/{topic}"
    assert properties["content-type"] == "application/json"
    assert properties["penstock_relay"] == "to-the-sink"
    # One block, one entry in Pulsar's log: all of it or nothing.
    assert len({(m.message_id().ledger_id(), m.message_id().entry_id()) for m in found}) == 1


@pytest.mark.parametrize("batching", [True, False])
def test_a_block_sent_again_is_stored_once(
    broker: Broker, pulsar_sink: Make, topic: str, batching: bool
) -> None:
    first, second = pulsar_sink(batching=batching), pulsar_sink(batching=batching)
    first.preflight(topic, 1)
    first.send_block(block(1, 500, topic=topic))
    second.send_block(block(1, 500, topic=topic, reopened=True, lease_epoch=2))
    second.send_block(block(501, 600, topic=topic, lease_epoch=2))
    assert stored(broker, first, topic) == list(range(1, 601))


def test_the_broker_itself_drops_a_repeated_block(
    broker: Broker, sink: Alone, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.send_block(block(1, 500, topic=topic))
    monkeypatch.setattr(PulsarChannel, "_held", lambda *_: 0)  # as if nobody looked first
    sink.send_block(block(1, 500, topic=topic, reopened=True))
    assert stored(broker, sink, topic) == list(range(1, 501))


def test_half_a_block_is_completed(broker: Broker, pulsar_sink: Make, topic: str) -> None:
    """As after a crash while batching was off, also when it has been turned on since."""
    single, batched = pulsar_sink(batching=False), pulsar_sink()
    single.preflight(topic, 1)
    single.send_block(block(1, 300, topic=topic))
    batched.send_block(block(1, 500, topic=topic, reopened=True, lease_epoch=2))
    assert stored(broker, single, topic) == list(range(1, 501))


def _open_when_a_history_began(make: Make, topic: str) -> Alone:
    """Sent under the old history and not committed; the next lease belongs to a new one."""
    first, second = make(), make()
    first.preflight(topic, 1)
    first.send_block(block(1, 500, topic=topic))
    second.send_block(block(1, 500, topic=topic, reopened=True, lease_epoch=2, history=2))
    second.send_block(block(501, 600, topic=topic, lease_epoch=2, history=2))
    return first


def test_a_block_that_was_open_when_a_history_began_is_stored_once(
    broker: Broker, pulsar_sink: Make, topic: str
) -> None:
    """Guard: _began_before compares the last message, whose producer had another name."""
    sink = _open_when_a_history_began(pulsar_sink, topic)
    assert stored(broker, sink, topic) == list(range(1, 601))


def test_without_it_such_a_block_is_doubled(
    broker: Broker, pulsar_sink: Make, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: what an older history has sent counts for nothing."""
    monkeypatch.setattr(tail, "_began_before", lambda *_: False)
    sink = _open_when_a_history_began(pulsar_sink, topic)
    assert stored(broker, sink, topic) == [*range(1, 501), *range(1, 601)]


def test_a_block_of_other_events_is_sent_whole(
    broker: Broker, pulsar_sink: Make, topic: str
) -> None:
    """The lost time's events have the same sequences, and are others."""
    first, second = pulsar_sink(), pulsar_sink()
    first.preflight(topic, 1)
    first.send_block(block(1, 20, topic=topic))
    others = tuple(event(n, topic=topic, history=2, event_id=uuid.uuid4()) for n in range(11, 31))
    again = block(11, 30, topic=topic, reopened=True, lease_epoch=2, history=2, events=others)
    second.send_block(again)
    second.send_block(again)
    assert stored(broker, first, topic) == [*range(1, 21), *range(11, 31)]


def test_the_successor_fences_a_paused_relay(
    broker: Broker, sink: Alone, pulsar_sink: Make, topic: str
) -> None:
    sink.send_block(block(1, 10, topic=topic))
    successor = pulsar_sink()
    successor.send_block(block(11, 20, topic=topic, lease_epoch=2))
    with pytest.raises(SinkUnavailable, match="Fenced"):
        sink.send_block(block(11, 20, topic=topic))
    # It tries again before it learns that its lease is gone: Pulsar is ahead of what it knows.
    with pytest.raises(SinkMisconfigured, match="holds sequence 20"):
        sink.send_block(block(1, 10, topic=topic, reopened=True))
    with pytest.raises(SinkUnavailable, match="Fenced"):
        successor.send_block(block(21, 30, topic=topic, lease_epoch=2))
    successor.send_block(block(21, 30, topic=topic, lease_epoch=2, reopened=True))
    assert stored(broker, sink, topic) == list(range(1, 31))


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_two_relays_that_take_turns_at_random(
    broker: Broker, pulsar_sink: Make, topic: str, seed: int
) -> None:
    rng = random.Random(seed)
    sinks = [pulsar_sink(batching=rng.random() < 0.5) for _ in range(3)]
    sinks[0].preflight(topic, 1)
    done, lease_epoch = 0, 0
    while done < 2000:
        end = done + rng.randrange(1, 300)
        for attempt in range(rng.randrange(1, 4)):
            lease_epoch += 1
            one = block(done + 1, end, topic=topic, lease_epoch=lease_epoch, reopened=attempt > 0)
            rng.choice(sinks).send_block(one)
        done = end
    assert stored(broker, sinks[0], topic) == list(range(1, done + 1))


def test_a_block_above_the_limit_is_cut_at_the_same_places(
    broker: Broker, pulsar_sink: Make, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulsar_channel, "BATCH_BYTES", 20_000)
    first, second = pulsar_sink(), pulsar_sink()
    first.preflight(topic, 1)
    first.send_block(block(1, 200, topic=topic))
    entries = {m.message_id().entry_id() for m in broker.read(first.pulsar_topic(topic), 0)}
    assert len(entries) > 3
    monkeypatch.setattr(PulsarChannel, "_held", lambda *_: 0)
    second.send_block(block(1, 200, topic=topic, reopened=True, lease_epoch=2))
    assert stored(broker, first, topic) == list(range(1, 201))


def test_an_event_above_the_limit_is_refused(broker: Broker, sink: Alone, topic: str) -> None:
    events = (event(1, topic=topic), event(2, topic=topic, payload=bytes(6 << 20)))
    with pytest.raises(EventRefused) as refused:
        sink.send_block(block(1, 2, topic=topic, events=events))
    assert refused.value.sequence == 2
    sink.send_block(block(1, 2, topic=topic, events=events[:1]))
    assert stored(broker, sink, topic) == [1]


@pytest.mark.parametrize("batching", [True, False])
def test_an_event_that_only_the_client_finds_too_large(
    broker: Broker, pulsar_sink: Make, topic: str, monkeypatch: pytest.MonkeyPatch, batching: bool
) -> None:
    """The broker's limit could not be read, and is lower than the usual one."""
    sink = pulsar_sink(batching=batching)
    sink.preflight(topic, 1)
    monkeypatch.setattr(sink.sink, "_limit", 64 << 20)
    monkeypatch.setattr(pulsar_channel, "BATCH_BYTES", 64 << 20)
    noise = random.Random(1).randbytes(6 << 20)
    events = tuple(event(n, topic=topic, payload=noise if n == 2 else b"1") for n in (1, 2, 3))
    with pytest.raises(EventRefused) as refused:
        sink.send_block(block(1, 3, topic=topic, events=events))
    assert refused.value.sequence == 2
    thinned = (events[0], events[2])
    sink.send_block(block(1, 3, topic=topic, events=thinned, reopened=True))
    assert stored(broker, sink, topic) == [1, 3]


def test_a_full_queue_leaves_no_gap(
    broker: Broker, pulsar_sink: Make, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that refuses messages in the middle of a block, and takes later ones again."""
    sink = pulsar_sink()
    sink.preflight(topic, 1)
    monkeypatch.setattr(pulsar_producer, "MOST_EVENTS", 170)
    for reopened in [False] + [True] * 3:
        with suppress(SinkUnavailable):
            sink.send_block(block(1, 500, topic=topic, reopened=reopened))
            break
    assert stored(broker, sink, topic) == list(range(1, 501))


def test_sequences_that_begin_anew_are_not_swallowed(
    broker: Broker, sink: Alone, pulsar_sink: Make, topic: str
) -> None:
    sink.send_block(block(1, 100, topic=topic))
    for again in (False, True):
        with pytest.raises(SinkMisconfigured, match="holds sequence 100"):
            pulsar_sink().send_block(block(1, 50, topic=topic, lease_epoch=2, reopened=again))
    assert stored(broker, sink, topic) == list(range(1, 101))


def test_another_event_under_the_same_sequence_is_not_swallowed(
    broker: Broker, sink: Alone, pulsar_sink: Make, topic: str
) -> None:
    """A database that was restored to an older state, without a new history."""
    sink.send_block(block(1, 100, topic=topic))
    others = tuple(event(n, topic=topic, event_id=uuid.uuid4()) for n in range(91, 121))
    for again in (False, True):
        one = block(91, 120, topic=topic, events=others, lease_epoch=2, reopened=again)
        with pytest.raises(SinkMisconfigured, match="holds another event of sequence 100"):
            pulsar_sink().send_block(one)
    assert stored(broker, sink, topic) == list(range(1, 101))


@pytest.mark.parametrize("batching", [True, False])
def test_what_the_broker_remembers_of_an_emptied_topic(
    broker: Broker, pulsar_sink: Make, topic: str, batching: bool
) -> None:
    """Nobody reads the topic, so Pulsar has thrown away what was sent, but not its memory of it."""
    first = pulsar_sink(batching=batching)
    first.preflight(topic, 1)
    first.send_block(block(1, 100, topic=topic))
    first.close()
    partition = first.pulsar_topic(topic).replace("://", "/") + "-partition-0"
    broker.admin("PUT", f"{partition}/unload")
    broker.admin("DELETE", f"{partition}/truncate")
    assert stored(broker, first, topic) == []
    second = pulsar_sink(batching=batching)
    again = block(1, 100, topic=topic, lease_epoch=2, reopened=True)
    if batching:  # whole or not at all, so it was stored
        second.send_block(again)
        second.send_block(block(101, 110, topic=topic, lease_epoch=2))
        assert stored(broker, first, topic) == list(range(101, 111))
    else:  # nobody can know how far it went
        with pytest.raises(SinkMisconfigured, match="remembers sequence 100"):
            second.send_block(again)


def test_what_was_pushed_and_never_stored_is_sent(
    broker: Broker, sink: Alone, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker names what was pushed, also when its write has failed since."""
    made = pulsar_producer.PulsarProducer.__init__

    def pushed(producer: Any, *given: Any, **named: Any) -> None:
        made(producer, *given, **named)
        producer.remembered = 1

    monkeypatch.setattr(pulsar_producer.PulsarProducer, "__init__", pushed)
    sink.send_block(block(1, 3, topic=topic, reopened=True))
    assert stored(broker, sink, topic) == [1, 2, 3]


def test_a_block_recorded_by_a_relay_with_larger_blocks(
    broker: Broker, sink: Alone, topic: str
) -> None:
    sink.max_block_events = 10
    sink.send_block(block(1, 8000, topic=topic))
    assert stored(broker, sink, topic) == list(range(1, 8001))


@pytest.mark.parametrize("batching", [True, False])
def test_a_block_cut_elsewhere_would_be_doubled(
    broker: Broker, pulsar_sink: Make, topic: str, monkeypatch: pytest.MonkeyPatch, batching: bool
) -> None:
    """Why blocks are recorded: the broker alone keeps a different cut out only without batching."""
    first, second = pulsar_sink(batching=batching), pulsar_sink(batching=batching)
    first.preflight(topic, 1)
    first.send_block(block(1, 500, topic=topic))
    monkeypatch.setattr(PulsarChannel, "_held", lambda *_: 0)
    second.send_block(block(301, 900, topic=topic, lease_epoch=2))
    doubled = [] if not batching else list(range(301, 501))
    found = stored(broker, first, topic)
    assert sorted(found) == sorted([*range(1, 901), *doubled])


def test_a_restored_log_goes_on_in_a_new_history(
    broker: Broker, sink: Alone, pulsar_sink: Make, topic: str
) -> None:
    sink.send_block(block(1, 100, topic=topic))
    restored = pulsar_sink()
    restored.send_block(block(91, 120, topic=topic, history=2, lease_epoch=2))
    assert stored(broker, sink, topic) == [*range(1, 101), *range(91, 121)]
    with pytest.raises(SinkMisconfigured, match="holds events of history 2"):
        pulsar_sink().send_block(block(101, 110, topic=topic, lease_epoch=3))


def test_two_relays_do_not_share_a_topic(sink: Alone, pulsar_sink: Make, topic: str) -> None:
    sink.send_block(block(1, 10, topic=topic))
    with pytest.raises(SinkMisconfigured, match="by the relay to-the-sink"):
        pulsar_sink().send_block(block(11, 20, topic=topic, relay="another"))


def test_messages_from_before_the_relay_are_left_alone(
    broker: Broker, sink: Alone, topic: str
) -> None:
    client = pulsar.Client(broker.standalone.service_url, logger=quiet())
    client.create_producer(f"{sink.pulsar_topic(topic)}-partition-0").send(b"older")
    client.close()
    sink.send_block(block(1, 3, topic=topic))
    assert len(broker.read(sink.pulsar_topic(topic), 0)) == 4


def test_preflight_proves_that_deduplication_is_on(
    broker: Broker, pulsar_sink: Make, topic: str
) -> None:
    sink = pulsar_sink()
    sink.preflight(topic, 1)
    path = sink.pulsar_topic(topic).replace("://", "/")
    broker.admin("POST", f"{path}/deduplicationEnabled", False)
    assert_misconfigured(sink, topic, 1, "set-deduplication --enable public/default")
    broker.admin("POST", f"{path}/deduplicationEnabled", True)
    sink.preflight(topic, 1)


def test_preflight_follows_the_namespace_and_the_broker(
    broker: Broker, pulsar_sink: Make, topic: str
) -> None:
    for enabled in (False, True):
        namespace = f"{topic.replace('/', '-')}-{enabled}"
        broker.admin("PUT", f"namespaces/public/{namespace}")
        broker.admin("POST", f"namespaces/public/{namespace}/deduplication", enabled)
        broker.admin("PUT", f"persistent/public/{namespace}/plain/partitions", 1)
        sink = pulsar_sink(topic=f"persistent://public/{namespace}/plain")
        if enabled:
            sink.preflight(topic, 1)
        else:
            assert_misconfigured(sink, topic, 1, f"--enable public/{namespace}")


def test_preflight_compares_the_partitions(pulsar_sink: Make, topic: str) -> None:
    pulsar_sink().preflight(topic, 2)
    assert_misconfigured(pulsar_sink(), topic, 3, "update-partitioned-topic -p 3")
    assert_misconfigured(pulsar_sink(), topic, 1, "name another Pulsar topic")
    assert_misconfigured(pulsar_sink(create=False), "bank/none", 4, "create-partitioned-topic -p 4")


def test_a_missing_namespace_or_tenant_says_what_makes_it(
    broker: Broker, pulsar_sink: Make, topic: str
) -> None:
    """Guard: require_namespace; Pulsar answers 404 to the making of a topic, and no more."""
    name = f"none-{topic.rpartition('-')[2]}"
    for create in (True, False):
        sink = pulsar_sink(topic=f"persistent://public/{name}/{{topic}}", create=create)
        assert_misconfigured(sink, topic, 1, f"run: pulsar-admin namespaces create public/{name}")
        sink = pulsar_sink(topic=f"persistent://{name}/own/{{topic}}", create=create)
        made = f"pulsar-admin tenants create {name}; then: pulsar-admin namespaces create {name}/"
        assert_misconfigured(sink, topic, 1, made)
    broker.admin("PUT", f"namespaces/public/{name}")
    pulsar_sink(topic=f"persistent://public/{name}/{{topic}}").preflight(topic, 1)


def assert_misconfigured(sink: Alone, topic: str, partitions: int, says: str) -> None:
    """The preflight refuses, and says what to do."""
    with pytest.raises(SinkMisconfigured) as refused:
        sink.preflight(topic, partitions)
    assert says in str(refused.value)


def test_a_broker_that_is_away_is_tried_again_later(unused_url: str) -> None:
    sink: Any = PulsarSink(
        unused_url.replace("http", "pulsar"), admin_url=unused_url, send_timeout_seconds=1
    )
    with pytest.raises(SinkUnavailable):
        sink.preflight("bank/accounts", 1)
    sink.close()


@pytest.fixture
def unused_url() -> str:
    """An address where nobody answers."""
    from tools.pulsar.standalone import free_ports

    return f"http://127.0.0.1:{free_ports(1)[0]}"
