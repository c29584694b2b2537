"""The Kafka sink alone, against a real broker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from ops.sinks import kafka_channel, kafka_producer, kafka_tail
from ops.sinks.base import Channel, EventRefused, RelayBlock, SinkMisconfigured, SinkUnavailable
from ops.sinks.ends import SinkBehind
from ops.sinks.kafka import KafkaSink
from ops.sinks.kafka_channel import KafkaChannel
from ops.sinks.kafka_producer import KafkaProducer
from ops.sinks.kafka_tail import KafkaEnd
from penstock.log.restores import Seen
from tests.kit.proof import proves
from tests.relay.blocks import block, event
from tests.relay.kafka import SECONDS, KafkaBroker, headers, lease_of, stored

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

#: Opens the channel of the block's lease, sends it and leaves the channel open.
Send = Callable[[RelayBlock], Channel]


@pytest.fixture
def sink(kafka_broker: KafkaBroker, topic: str) -> Iterator[KafkaSink]:
    """A sink whose topic has one partition."""
    with closing(kafka_broker.sink()) as made:
        made.preflight(topic, 1)
        yield made


@pytest.fixture
def send(sink: KafkaSink) -> Iterator[Send]:
    """Each call is another lease's channel, as of another relay process."""
    with ExitStack() as stack:

        def in_its_own_lease(one: RelayBlock) -> Channel:
            channel = stack.enter_context(closing(sink.open(lease_of(one))))
            channel.send_block(one)
            return channel

        yield in_its_own_lease


def test_an_event_with_its_attributes(
    kafka_broker: KafkaBroker, sink: KafkaSink, send: Send, topic: str
) -> None:
    channel = send(block(1, 3, topic=topic))
    assert channel.seen() == Seen(3, 1)
    found = kafka_broker.read(sink.settings.topic(topic))
    assert [each.value() for each in found] == [event(n).payload for n in (1, 2, 3)]
    assert found[1].key() == b"account-2"
    assert found[1].timestamp()[1] == int(event(2).created_at.timestamp() * 1000)
    attributes = headers(found[1])
    assert attributes["ce_id"] == str(event(2, topic=topic).event_id)
    assert attributes["ce_source"] == f"/{topic}"
    assert attributes["ce_penstockhistory"] == "1"
    assert attributes["content-type"] == "application/json"
    assert attributes["penstock_relay"] == "to-the-sink"


def _sent_and_sent_again(send: Send, topic: str) -> None:
    send(block(1, 20, topic=topic))
    send(block(1, 20, topic=topic, reopened=True, lease_epoch=2)).send_block(
        block(21, 30, topic=topic, lease_epoch=2)
    )


@proves("Kafka, exactly once")
def test_a_block_sent_again_is_stored_once(
    kafka_broker: KafkaBroker, sink: KafkaSink, send: Send, topic: str
) -> None:
    _sent_and_sent_again(send, topic)
    assert stored(kafka_broker, sink, topic) == list(range(1, 31))


@proves("Kafka, exactly once", guard="reading the tail")
def test_without_reading_the_tail_it_is_stored_twice(
    kafka_broker: KafkaBroker,
    sink: KafkaSink,
    send: Send,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutant: transactions alone are not enough."""
    monkeypatch.setattr(kafka_channel, "last_record", lambda *_: KafkaEnd(None, 0, 0))
    _sent_and_sent_again(send, topic)
    assert stored(kafka_broker, sink, topic) == [*range(1, 21), *range(1, 31)]


def test_half_a_block_is_completed(
    kafka_broker: KafkaBroker, sink: KafkaSink, send: Send, topic: str
) -> None:
    """As after a time without transactions."""
    send(block(1, 7, topic=topic))
    send(block(1, 20, topic=topic, reopened=True, lease_epoch=2))
    assert stored(kafka_broker, sink, topic) == list(range(1, 21))


def _paused_before_its_commit(
    sink: KafkaSink, topic: str, monkeypatch: pytest.MonkeyPatch
) -> pytest.ExceptionInfo[SinkUnavailable] | None:
    """A relay stands still in a transaction, its successor sends the block, the relay goes on."""
    late, successor = (
        channel_of(sink, block(1, 1, topic=topic, lease_epoch=epoch)) for epoch in (1, 2)
    )
    with closing(late), closing(successor):
        late.send_block(block(1, 5, topic=topic))
        deliver = late._producer._deliver  # type: ignore[union-attr]

        def and_stand_still(name: str) -> None:
            deliver(name)
            successor.send_block(block(6, 20, topic=topic, lease_epoch=2, reopened=True))

        monkeypatch.setattr(late._producer, "_deliver", and_stand_still)
        try:
            late.send_block(block(6, 20, topic=topic))
        except SinkUnavailable as error:
            return pytest.ExceptionInfo.from_exception(error)
    return None


def channel_of(sink: KafkaSink, one: RelayBlock) -> KafkaChannel:
    """The channel of a block's lease."""
    channel = sink.open(lease_of(one))
    assert isinstance(channel, KafkaChannel)
    return channel


@proves("Kafka, exactly once")
def test_the_successor_fences_a_paused_relay(
    kafka_broker: KafkaBroker, sink: KafkaSink, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = _paused_before_its_commit(sink, topic, monkeypatch)
    assert refused is not None
    assert "another relay has taken the partition over" in str(refused.value)
    assert stored(kafka_broker, sink, topic) == list(range(1, 21))


def _own_id(name: str) -> dict[str, Any]:
    return {"transactional.id": f"penstock/{name}/{uuid.uuid4()}"}


@proves("Kafka, exactly once", guard="the transactional id")
def test_without_fencing_a_paused_relay_doubles(
    kafka_broker: KafkaBroker, sink: KafkaSink, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: each process has a transactional id of its own, and does not wait for others."""
    monkeypatch.setattr(kafka_producer, "_transactional", _own_id)
    monkeypatch.setattr(kafka_channel, "last_record", lambda *_: KafkaEnd(None, 0, 0))
    monkeypatch.setattr(KafkaChannel, "_require_all", lambda *_: None)
    assert _paused_before_its_commit(sink, topic, monkeypatch) is None
    assert stored(kafka_broker, sink, topic) == [*range(1, 6), *range(6, 21), *range(6, 21)]


@proves("Kafka, exactly once")
def test_an_open_transaction_is_waited_for(
    kafka_broker: KafkaBroker, sink: KafkaSink, send: Send, topic: str
) -> None:
    """Guard: _settled. Behind it there may be committed records that cannot be read yet."""
    other = kafka_broker.producer(**{"transactional.id": f"other/{topic}"})
    other.init_transactions(SECONDS)
    other.begin_transaction()
    other.produce(sink.settings.topic(topic), b"not ours", partition=0)
    other.flush(SECONDS)
    with pytest.raises(SinkUnavailable, match="an open transaction") as told:
        send(block(1, 5, topic=topic))
    assert told.value.retry_after == 1
    other.commit_transaction(SECONDS)
    send(block(1, 5, topic=topic, reopened=True, lease_epoch=2))
    found = kafka_broker.read(sink.settings.topic(topic))
    assert [headers(each).get("ce_sequence", "")[-1:] for each in found] == ["", *"12345"]


def test_an_open_transaction_of_a_dead_relay_is_ended_by_its_successor(
    kafka_broker: KafkaBroker, sink: KafkaSink, topic: str
) -> None:
    """At once, and not when its time is over: asking what Kafka holds does not wait for it."""
    dead = channel_of(sink, block(1, 1, topic=topic))
    dead.send_block(block(1, 5, topic=topic))
    assert dead._producer is not None
    dead._producer._producer.begin_transaction()
    dead._producer._producer.produce(sink.settings.topic(topic), b"half", partition=0)
    dead._producer._producer.flush(SECONDS)
    again = block(6, 8, topic=topic, lease_epoch=2, reopened=True)
    with closing(sink.open(lease_of(again))) as successor:
        begun = time.monotonic()
        assert successor.seen() is None
        successor.send_block(again)
        assert successor.seen() == Seen(8, 1)
        assert time.monotonic() - begun < kafka_producer.TRANSACTION_SECONDS / 2
    assert stored(kafka_broker, sink, topic) == list(range(1, 9))


def test_what_others_write_hides_nothing(
    kafka_broker: KafkaBroker,
    sink: KafkaSink,
    send: Send,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last record of a relay counts, not the last one; too many of others are refused."""
    send(block(1, 5, topic=topic))
    other = kafka_broker.producer()
    for _ in range(100):
        other.produce(sink.settings.topic(topic), b"not ours", partition=0)
    other.flush(SECONDS)
    monkeypatch.setattr(kafka_tail, "MOST_FOREIGN", 50)
    with pytest.raises(SinkMisconfigured, match=r"records of .* are not of a relay"):
        send(block(1, 8, topic=topic, reopened=True, lease_epoch=2))
    monkeypatch.undo()
    send(block(1, 8, topic=topic, reopened=True, lease_epoch=3))
    found = [headers(each) for each in kafka_broker.read(sink.settings.topic(topic))]
    sequences = [int(each["ce_sequence"]) for each in found if each]
    assert sequences == list(range(1, 9))


@proves("Kafka, exactly once", guard="the note of the relay")
def test_two_relays_do_not_share_a_topic(
    sink: KafkaSink, send: Send, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(block(1, 10, topic=topic))
    with pytest.raises(SinkMisconfigured, match="by the relay to-the-sink"):
        send(block(11, 20, topic=topic, relay="another"))
    # Mutant: without the check, the second one takes the first one's records for its own.
    monkeypatch.setattr(kafka_channel, "present", lambda tail, *_: tail)
    assert send(block(1, 20, topic=topic, relay="another")).seen() == Seen(20, 1)


@proves("Kafka, exactly once", guard="the look at what is stored")
@pytest.mark.parametrize("checked", [True, False], ids=["checked", "mutant"])
def test_a_record_above_the_limit_in_the_middle(
    kafka_broker: KafkaBroker,
    sink: KafkaSink,
    send: Send,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    checked: bool,
) -> None:
    """The third of five. Without the check before sending, its block can never be sent."""
    kafka_broker.configure(sink.settings.topic(topic), max_message_bytes="20000")
    sink.preflight(topic, 1)
    events = tuple(
        event(n, topic=topic, payload=bytes(20_000 if n == 3 else 18_000)) for n in range(1, 6)
    )
    if not checked:
        monkeypatch.setattr(KafkaChannel, "_refuse", lambda *_: None)
    with pytest.raises(EventRefused if checked else SinkUnavailable) as refused:
        send(block(1, 5, topic=topic, events=events))
    assert ("sequence 3" if checked else "MSG_SIZE_TOO_LARGE") in str(refused.value)
    thinned = tuple(each for each in events if each.sequence != 3)
    send(block(1, 5, topic=topic, events=thinned, reopened=True, lease_epoch=2))
    assert stored(kafka_broker, sink, topic) == [1, 2, 4, 5]


def test_a_limit_that_was_lowered_is_said(
    kafka_broker: KafkaBroker, sink: KafkaSink, send: Send, topic: str
) -> None:
    kafka_broker.configure(
        sink.settings.topic(topic), max_message_bytes="2000", compression_type="uncompressed"
    )
    noise = tuple(event(n, topic=topic, payload=uuid.uuid4().bytes * 500) for n in (1, 2, 3))
    with pytest.raises(SinkMisconfigured, match="less than its max"):
        send(block(1, 3, topic=topic, events=noise))
    assert stored(kafka_broker, sink, topic) == []


def test_a_log_that_was_put_back_is_not_followed(
    kafka_broker: KafkaBroker, sink: KafkaSink, send: Send, topic: str
) -> None:
    send(block(1, 100, topic=topic))
    with pytest.raises(SinkMisconfigured, match="holds sequence 100"):
        send(block(1, 50, topic=topic, lease_epoch=2, reopened=True))
    others = tuple(event(n, topic=topic, event_id=uuid.uuid4()) for n in range(91, 121))
    with pytest.raises(SinkMisconfigured, match="holds another event of sequence 100"):
        send(block(91, 120, topic=topic, events=others, lease_epoch=2, reopened=True))
    send(block(91, 110, topic=topic, history=2, lease_epoch=3))
    with pytest.raises(SinkMisconfigured, match="holds events of history 2"):
        send(block(101, 110, topic=topic, lease_epoch=4))
    assert stored(kafka_broker, sink, topic) == [*range(1, 101), *range(91, 111)]


def test_a_block_that_was_open_when_a_history_began_is_stored_once(
    kafka_broker: KafkaBroker, sink: KafkaSink, send: Send, topic: str
) -> None:
    send(block(1, 50, topic=topic))
    send(block(1, 60, topic=topic, reopened=True, lease_epoch=2, history=2))
    found = [headers(each) for each in kafka_broker.read(sink.settings.topic(topic))]
    assert [int(each["ce_sequence"]) for each in found] == list(range(1, 61))
    assert {each["ce_penstockhistory"] for each in found[50:]} == {"2"}


@proves("Kafka, exactly once", guard="the look at what is stored")
def test_a_partition_that_was_emptied_while_a_block_was_open(
    kafka_broker: KafkaBroker,
    sink: KafkaSink,
    send: Send,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody can know whether it was sent, so a person says so; a new block goes on."""
    send(block(1, 5, topic=topic))
    kafka_broker.empty(sink.settings.topic(topic))
    again = block(1, 5, topic=topic, reopened=True, lease_epoch=2)
    with pytest.raises(SinkMisconfigured, match="was open: nobody can tell") as told:
        send(again)
    assert f"penstock relay resolve to-the-sink {topic} 0 --sent" in str(told.value.hint)
    send(block(6, 8, topic=topic, lease_epoch=3))
    assert stored(kafka_broker, sink, topic) == [6, 7, 8]
    kafka_broker.empty(sink.settings.topic(topic))
    # Mutant: without the question it is sent, a second time for those who had read it.
    monkeypatch.setattr(kafka_channel, "_emptied", lambda *_: KeyError())
    with pytest.raises(KeyError):
        send(again)


def _fails_and_is_sent_again(
    kafka_broker: KafkaBroker,
    sink: KafkaSink,
    send: Send,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition that retention has emptied, and a block whose first attempt commits nothing."""
    send(block(1, 5, topic=topic))
    kafka_broker.empty(sink.settings.topic(topic))
    with monkeypatch.context() as patch, pytest.raises(SinkUnavailable):
        patch.setattr(KafkaProducer, "_deliver", _away)
        send(block(6, 8, topic=topic, lease_epoch=2))
    send(block(6, 8, topic=topic, lease_epoch=2, reopened=True))
    assert stored(kafka_broker, sink, topic) == [6, 7, 8]


def _away(*_: Any) -> None:
    raise SinkUnavailable("away")


@proves("Kafka, exactly once")
def test_an_emptied_partition_tells_that_a_block_was_not_sent(
    kafka_broker: KafkaBroker,
    sink: KafkaSink,
    send: Send,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has everything that came after the block was begun. Guard: what the sink has noted."""
    _fails_and_is_sent_again(kafka_broker, sink, send, topic, monkeypatch)
    send(block(9, 10, topic=topic, lease_epoch=3))
    kafka_broker.empty(sink.settings.topic(topic))  # what it had after that is gone too
    with pytest.raises(SinkMisconfigured, match="was open: nobody can tell"):
        send(block(9, 10, topic=topic, lease_epoch=4, reopened=True))


@proves("Kafka, exactly once", guard="the note of the relay")
def test_without_the_note_it_would_wait_for_a_person(
    kafka_broker: KafkaBroker,
    sink: KafkaSink,
    send: Send,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutant."""
    monkeypatch.setattr(sink, "_noted", _Forgets())
    with pytest.raises(SinkMisconfigured, match="was open: nobody can tell"):
        _fails_and_is_sent_again(kafka_broker, sink, send, topic, monkeypatch)


class _Forgets(dict[Any, Any]):
    def __setitem__(self, *_: Any) -> None:
        """Note nothing."""


@proves("Kafka, exactly once")
def test_a_partition_that_has_lost_its_end_is_told(
    kafka_broker: KafkaBroker, sink: KafkaSink, topic: str
) -> None:
    """As after an unclean election: it ends at 5, and 6 to 10 were sent. With an empty one too."""
    lost, second = block(6, 10, topic=topic, reopened=True), block(11, 12, topic=topic)
    with closing(sink.open(lease_of(second))) as channel:
        with pytest.raises(SinkBehind, match="up to sequence 0, and the relay"):
            channel.send_block(lost)
        channel.send_block(block(1, 5, topic=topic))
    with closing(sink.open(lease_of(second))) as channel:
        with pytest.raises(SinkBehind, match="up to sequence 5, and the relay") as behind:
            channel.send_block(second)
        assert not behind.value.resend
        channel.send_block(lost)
        channel.send_block(second)
        with pytest.raises(SinkBehind) as behind:
            channel.send_block(block(21, 22, topic=topic))
        behind.value.skip()  # a person has left out 13 to 20
        channel.send_block(block(21, 22, topic=topic))
    assert stored(kafka_broker, sink, topic) == [*range(1, 13), 21, 22]
    with closing(kafka_broker.sink(f"{kafka_broker.address}&resend=true")) as resending:
        assert resending.settings.resend


def test_a_block_recorded_under_an_older_address(
    kafka_broker: KafkaBroker, sink: KafkaSink, topic: str
) -> None:
    """It goes where it was going, once; the next one goes to the new place."""
    sink.preflight(f"{topic}-new", 1)
    old, new = block(1, 5, topic=topic), block(6, 9, topic=f"{topic}-new", known_as=topic)
    with closing(sink.open(lease_of(old))) as channel:
        channel.send_block(old)
    with closing(sink.open(lease_of(new))) as channel:
        assert channel.seen() is None
        channel.send_block(block(1, 5, topic=topic, reopened=True))
        channel.send_block(new)
        assert channel.seen() == Seen(9, 1)
    assert stored(kafka_broker, sink, topic) == [1, 2, 3, 4, 5]
    assert stored(kafka_broker, sink, f"{topic}-new") == [6, 7, 8, 9]
