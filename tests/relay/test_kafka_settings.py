"""The Kafka sink without transactions, and with rules."""

from __future__ import annotations

import dataclasses
import uuid
from contextlib import closing

import pytest

from ops.sinks import kafka_producer
from ops.sinks.address import open_sink as open_any
from ops.sinks.kafka import KafkaSink
from penstock.errors import SinkError
from penstock.publishing.cloudevents import read_structured
from tests.kit.proof import proves
from tests.relay.blocks import block, event
from tests.relay.kafka import KafkaBroker, headers, lease_of, stored


def test_without_transactions_it_is_sent_at_least_once(
    kafka_broker: KafkaBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(kafka_broker.sink(f"{kafka_broker.address}&exactly=false")) as sink:
        sink.preflight(topic, 1)
        for epoch in (1, 2):
            again = block(1, 5, topic=topic, lease_epoch=epoch, reopened=epoch > 1)
            with closing(sink.open(lease_of(again))) as channel:
                channel.send_block(again)
        assert stored(kafka_broker, sink, topic) == [1, 2, 3, 4, 5]


def _third_of_five_is_refused(
    broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Without transactions, each record in a batch of its own; the topic's limit was lowered."""
    monkeypatch.setattr(kafka_producer, "_BATCH_BYTES", 1)
    with closing(broker.sink(f"{broker.address}&exactly=false")) as sink:
        sink.preflight(topic, 1)
        broker.configure(
            sink.settings.topic(topic), max_message_bytes="2000", compression_type="uncompressed"
        )
        noise = uuid.uuid4().bytes * 500
        events = tuple(event(n, topic=topic, payload=noise if n == 3 else b"") for n in range(1, 6))
        one = block(1, 5, topic=topic, events=events)
        with closing(sink.open(lease_of(one))) as channel, pytest.raises(SinkError):
            channel.send_block(one)
        return stored(broker, sink, topic)


def test_without_transactions_nothing_comes_after_a_gap(
    kafka_broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last record would say that everything before it is there."""
    found = _third_of_five_is_refused(kafka_broker, topic, monkeypatch)
    assert found in ([], [1], [1, 2])


def test_two_addresses_of_one_kafka_topic_are_one_place(
    kafka_broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: places are compared by the topic there. Mutant: apart, one of them sends less."""

    def sent(type_of: str) -> list[int]:
        types = (f"{type_of}/b", f"{type_of}.b", f"{type_of}/b")
        events = tuple(event(n, topic=topic, type=each) for n, each in enumerate(types, 1))
        one = dataclasses.replace(block(1, 3, topic=topic), events=events)
        with closing(open_any(f"{kafka_broker.address}#to={{topic}}.{{type}}")) as sink:
            sink.preflight(topic, 1)
            with closing(sink.open(lease_of(one))) as channel:
                channel.send_block(one)
        name = kafka_broker.sink().settings.topic(f"{topic}.{type_of}.b")
        return [int(headers(each)["ce_sequence"]) for each in kafka_broker.read(name)]

    assert sent("a") == [1, 2, 3]
    monkeypatch.setattr(KafkaSink, "address_of", staticmethod(str))
    assert sent("c") == [1, 3]


@proves("what rules leave out is no loss")
def test_rules_reach_kafka_and_each_topic_is_exact(kafka_broker: KafkaBroker, topic: str) -> None:
    """Tombstones, structured events, and topics that the events choose, in two attempts."""
    rules = "#tombstones=true&envelope=structured&to={topic}.{type}"
    with closing(open_any(f"{kafka_broker.address}{rules}")) as sink:
        sink.preflight(topic, 1)
        events = (
            event(1, topic=topic, type="a"),
            event(2, topic=topic, type="b", payload=b""),
            event(3, topic=topic, type="a"),
        )
        one = dataclasses.replace(block(1, 3, topic=topic), events=events)
        for attempt in (one, dataclasses.replace(one, reopened=True, lease_epoch=2)):
            with closing(sink.open(lease_of(attempt))) as channel:
                channel.send_block(attempt)
    base = kafka_broker.sink().settings.topic(topic)
    found = kafka_broker.read(f"{base}.a")
    assert [read_structured(each.value() or b"").data for each in found] == [
        {"amount": 1}, {"amount": 3},
    ]  # fmt: skip
    assert {headers(each)["content-type"] for each in found} == {"application/cloudevents+json"}
    (gone,) = kafka_broker.read(f"{base}.b")
    assert (gone.value(), gone.key()) == (None, b"account-2")
