"""The Pulsar sink and topics whose address changes hands, against a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from ops.sinks import pulsar_producer
from ops.sinks.base import RelayBlock, SinkMisconfigured
from ops.sinks.pulsar_producer import PulsarMessage, producer_name
from ops.sinks.tail import TOPIC_HEADER
from penstock.log.restores import Seen
from penstock.records import Event
from tests.kit.proof import proves
from tests.kit.sinks import Alone
from tests.relay.blocks import block, event
from tests.relay.pulsar_broker import Broker

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

Make = Callable[..., Alone]
RELAY = "to-the-sink"


def _anew(make: Make, topic: str) -> Alone:
    """A hundred events of a topic, and fifty of another one that was made under its name."""
    first, second = make(), make()
    first.preflight(topic, 1)
    first.send_block(block(1, 100, topic=topic, known_as=f"{topic}//1"))
    assert second.seen(RELAY, topic, f"{topic}//2", 0) is None
    others = tuple(event(n, topic=topic, event_id=uuid.uuid4()) for n in range(1, 51))
    second.send_block(block(1, 50, topic=topic, known_as=f"{topic}//2", events=others))
    assert second.seen(RELAY, topic, f"{topic}//2", 0) == Seen(50, 1)
    return first


@proves("F23", how="Pulsar")
def test_a_topic_made_anew_is_not_swallowed(broker: Broker, pulsar_sink: Make, topic: str) -> None:
    """Guards: known_as in the producer's name and in the messages."""
    sink = _anew(pulsar_sink, topic)
    assert broker.sequences(sink.pulsar_topic(topic), 0) == [*range(1, 101), *range(1, 51)]


def test_under_the_name_of_the_old_one_it_is(
    broker: Broker, pulsar_sink: Make, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the producer is named by the address; what the broker drops is noticed."""

    def by_address(block: RelayBlock) -> str:
        return f"penstock/{block.relay}/{block.topic}/{block.partition}/{block.history}"

    monkeypatch.setattr(pulsar_producer, "producer_name", by_address)
    with pytest.raises(SinkMisconfigured):
        _anew(pulsar_sink, topic)


def test_a_renamed_topic_goes_on_where_it_was(
    broker: Broker, pulsar_sink: Make, topic: str
) -> None:
    """Guard: known_as; `topics` gives both addresses the same Pulsar topic."""
    target = pulsar_sink().pulsar_topic(topic)
    places = {topic: target, f"{topic}-renamed": target}
    first, second = pulsar_sink(topics=places), pulsar_sink(topics=places)
    first.preflight(topic, 1)
    name = f"{topic}//1"
    first.send_block(block(1, 100, topic=topic, known_as=name))
    second.send_block(block(1, 100, topic=topic, known_as=name, reopened=True, lease_epoch=2))
    renamed = f"{topic}-renamed"
    assert second.seen(RELAY, renamed, name, 0) == Seen(100, 1)
    second.send_block(block(101, 110, topic=renamed, known_as=name, lease_epoch=2))
    assert broker.sequences(target, 0) == list(range(1, 111))


def test_what_was_sent_before_topics_had_names(
    broker: Broker, pulsar_sink: Make, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: the producer keeps its name, and a message without a name has its address for one."""

    def without_name(event: Event, block: RelayBlock) -> PulsarMessage:
        made = present(event, block)
        return PulsarMessage(
            made.event,
            {key: text for key, text in made.properties.items() if key != TOPIC_HEADER},
            made.size,
        )

    present = PulsarMessage.of
    old = block(1, 100, topic=topic)
    assert producer_name(old) == f"penstock/{RELAY}/{topic}/0/1"
    first, second = pulsar_sink(), pulsar_sink()
    first.preflight(topic, 1)
    with monkeypatch.context() as patch:
        patch.setattr(PulsarMessage, "of", without_name)
        first.send_block(old)
    target = first.pulsar_topic(topic)
    assert TOPIC_HEADER not in broker.read(target, 0)[-1].properties()
    assert second.seen(RELAY, topic, topic, 0) == Seen(100, 1)
    assert second.seen(RELAY, topic, f"{topic}//9", 0) is None
    second.send_block(block(1, 100, topic=topic, reopened=True, lease_epoch=2))
    second.send_block(block(101, 120, topic=topic, lease_epoch=2))
    assert broker.sequences(target, 0) == list(range(1, 121))
