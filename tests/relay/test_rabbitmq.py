"""The RabbitMQ sink, on a broker of its own."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from ops.sinks import rabbitmq_channel
from ops.sinks.address import open_sink
from ops.sinks.base import (
    EventRefused,
    RelayBlock,
    Sink,
    SinkLease,
    SinkMisconfigured,
    SinkUnavailable,
)
from ops.sinks.cloudevents import attributes
from ops.sinks.sent import SentEvents
from penstock.errors import ConfigurationError
from penstock.publishing.rows import EXCHANGE, ROUTING_KEY
from tests.kit.proof import proves
from tests.relay.blocks import TOPIC, block, event
from tests.relay.rabbits import LOGIN, Rabbit

LEASE = SinkLease("to-the-sink", TOPIC, TOPIC, 0, 1, 1)


def send(sink: Sink, sent: RelayBlock) -> None:
    """Send a block over a channel of its own, as a relay does after every error."""
    with closing(sink.open(LEASE)) as channel:
        channel.send_block(sent)


def test_a_queue_gets_the_events_in_order(rabbit: Rabbit) -> None:
    sink = rabbit.sink("queue=orders&create=true")
    sink.preflight(TOPIC, 1)
    rabbit.sink("queue=orders").preflight(TOPIC, 1)
    with closing(sink.open(LEASE)) as channel:
        assert channel.seen() is None
        channel.send_block(block(1, 500))
        channel.send_block(block(501, 502, events=(event(501), event(502, key=""))))
    messages = rabbit.read("orders")
    assert [each.message_id for each, _ in messages] == [
        str(event(n).event_id) for n in range(1, 503)
    ]
    properties, body = messages[0]
    assert body == event(1).payload
    assert (properties.delivery_mode, properties.content_type) == (2, "application/json")
    wanted = {f"cloudEvents_{n}": str(v) for n, v in attributes(event(1)).items()}
    wanted.pop("cloudEvents_datacontenttype")
    assert properties.headers == wanted


def test_an_exchange_routes_by_topic_or_as_the_publisher_says(rabbit: Rabbit) -> None:
    queues = {key: rabbit.queue() for key in ("bank.accounts.moved", "urgent")}
    with closing(rabbit.connect()) as connection:
        channel = connection.channel()
        channel.exchange_declare("events", "topic", durable=True)
        for key, queue in queues.items():
            channel.queue_bind(queue, "events", key)
        channel.queue_bind(queues["urgent"], "amq.direct", "other")
    sink = rabbit.sink("exchange=events&route={topic}.{type}")
    sink.preflight(TOPIC, 1)
    chosen = {2: {ROUTING_KEY: "urgent"}, 3: {EXCHANGE: "amq.direct", ROUTING_KEY: "other"}}
    events = tuple(event(n, headers=chosen.get(n, {})) for n in range(1, 5))
    send(sink, block(1, 4, events=events))
    assert rabbit.sequences(queues["bank.accounts.moved"]) == [1, 4]
    assert rabbit.sequences(queues["urgent"]) == [2, 3]


@proves("a sink that only takes gets everything")
@proves("a sink that only takes gets everything", guard="what comes back from RabbitMQ")
def test_what_no_queue_gets_is_said_and_sent_again(
    rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(rabbit.connect()) as connection:
        connection.channel().exchange_declare("nobody", "topic", durable=True)
    sink = rabbit.sink("exchange=nobody")
    with pytest.raises(SinkMisconfigured, match=r"no queue for 3 events: NO_ROUTE"):
        send(sink, block(1, 3))
    queue = rabbit.queue()
    with closing(rabbit.connect()) as connection:
        connection.channel().queue_bind(queue, "nobody", "#")
    send(sink, block(1, 3, reopened=True))
    assert rabbit.sequences(queue) == [1, 2, 3]
    # Without the look at what came back, an event that no queue got counts as sent.
    monkeypatch.setattr(rabbitmq_channel._Confirms, "come_back", lambda *_: None)
    with closing(rabbit.connect()) as connection:
        connection.channel().queue_unbind(queue, "nobody", "#")
    send(sink, block(4, 6))
    assert rabbit.sequences(queue) == []


def _full(rabbit: Rabbit) -> list[int]:
    """A queue that takes five, and is emptied before the next attempt."""
    queue = rabbit.queue(**{"x-max-length": 5, "x-overflow": "reject-publish"})
    sink = rabbit.sink(f"queue={queue}&window=1")
    with pytest.raises(SinkUnavailable, match="did not take"):
        send(sink, block(1, 9))
    found = rabbit.sequences(queue)
    send(sink, block(1, 9, reopened=True))
    return found + rabbit.sequences(queue)


def test_a_queue_that_is_full_gets_the_rest_later(rabbit: Rabbit) -> None:
    """One at a time nothing passes what was not taken."""
    assert _full(rabbit) == list(range(1, 10))


def test_without_the_memory_it_is_doubled(rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SentEvents, "of", lambda *_: set())
    queue = rabbit.queue(**{"x-max-length": 5, "x-overflow": "reject-publish"})
    sink = rabbit.sink(f"queue={queue}&window=1")
    for _ in range(2):
        with pytest.raises(SinkUnavailable):
            send(sink, block(1, 9))
    assert rabbit.sequences(queue) != [1, 2, 3, 4, 5, 6, 7, 8, 9]


@proves("a sink that only takes gets everything")
def test_a_restart_of_the_broker_loses_nothing(rabbit: Rabbit) -> None:
    """The channel notices that its connection is gone, and what was confirmed is still there."""
    queue = rabbit.queue()
    sink = rabbit.sink(f"queue={queue}")
    with closing(sink.open(LEASE)) as channel:
        channel.send_block(block(1, 50))
        rabbit.server.kill()
        with pytest.raises(SinkUnavailable):
            channel.send_block(block(51, 60))
    rabbit.server.start()
    send(sink, block(51, 60, reopened=True))
    assert rabbit.sequences(queue) == list(range(1, 61))


def test_events_that_rabbitmq_cannot_take_are_refused(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    odd: list[dict[str, Any]] = [
        {"headers": {"note": "x" * 200_000}},
        {"content_type": "x" * 256},
        {"payload": b"x" * (17 << 20)},
    ]
    for number, changes in enumerate(odd, start=1):
        with pytest.raises(EventRefused) as refused:
            send(rabbit.sink(f"queue={queue}"), block(1, 9, events=(event(number, **changes),)))
        assert refused.value.sequence == number
    assert rabbit.sequences(queue) == []


def test_what_is_set_up_wrong_is_said(rabbit: Rabbit) -> None:
    for query, said in (("queue=none", "queue none"), ("exchange=none", "exchange none")):
        with pytest.raises(SinkMisconfigured, match=f"the {said} of RabbitMQ is not there"):
            rabbit.sink(query).preflight(TOPIC, 1)
        with pytest.raises(SinkMisconfigured, match=r"NOT_FOUND|NO_ROUTE"):
            send(rabbit.sink(query), block(1, 1))
    wrong = rabbit.sink("queue=q", PENSTOCK_RABBITMQ_PASSWORD="hunter2")
    with pytest.raises(SinkMisconfigured, match="PENSTOCK_RABBITMQ_USERNAME") as caught:
        wrong.preflight(TOPIC, 1)
    assert "hunter2" not in str(caught.value)


def test_tls_proves_the_server(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    address = f"amqps://{rabbit.server.tls_url()}/?queue={queue}"
    trusted = {"PENSTOCK_RABBITMQ_CA_FILE": str(rabbit.authority)}
    send(open_sink(address, environ=LOGIN | trusted), block(1, 3))
    assert rabbit.sequences(queue) == [1, 2, 3]
    with pytest.raises(SinkUnavailable):
        send(open_sink(address, environ=LOGIN), block(4, 4))
    assert rabbit.sequences(queue) == []


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("amqp://h/", "not one of queue= and exchange="),
        ("amqp://h/?queue=a&exchange=b", "not one of queue= and exchange="),
        ("amqp://h/?queue=a&route={type}", "not one of queue= and exchange="),
        ("amqp://h/?exchange=a&route={password}", "only {topic}, {type} and {key}"),
        ("amqp://h/?queue=a&window=0", "no whole number from 1"),
        ("amqp://h:x/?queue=a", "names no server"),
        ("amqp:///?queue=a", "names no server"),
        ("amqp://ann:s3cret@h/?queue=a", "a login or a secret in it"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(address: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_sink(address)
    assert said in str(caught.value)
    assert caught.value.hint
    assert "s3cret" not in str(caught.value)
