"""The rules of a relay: what they leave out and change, and what its sink gets."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from ops.sinks.address import open_sink, require_no_secret
from ops.sinks.base import EventRefused, RelayBlock, SinkLease
from ops.sinks.cloudevents import to_json
from ops.sinks.ends import SinkBehind, SinkEnd, left
from ops.sinks.routed import RoutedSink, routing_of
from ops.sinks.routing import Routing, parse_routing, with_routing
from penstock.errors import ConfigurationError
from penstock.publishing.cloudevents import read_binary
from tests.relay.blocks import TOPIC, block, event, lease


class Taking:
    """A sink that keeps what it gets."""

    name, max_block_events, max_block_bytes = "taking", 10, 1000

    def __init__(self) -> None:
        self.blocks: list[RelayBlock] = []
        self.proven: list[tuple[str, int]] = []

    def preflight(self, topic: str, partitions: int) -> None:
        """As any sink."""
        self.proven.append((topic, partitions))

    def open(self, lease: SinkLease) -> Any:
        """The channel is the sink."""
        self.lease = lease
        return self

    def seen(self) -> None:
        """Nothing."""

    def send_block(self, block: RelayBlock) -> None:
        """Keep it."""
        self.blocks.append(block)

    def close(self) -> None:
        """Nothing is open."""


def sent(rules: str, *events: Any) -> list[RelayBlock]:
    """The blocks that a sink gets of these events."""
    sink = Taking()
    routed = RoutedSink(sink, parse_routing(rules)[0])
    routed.preflight(TOPIC, 3)
    channel = routed.open(lease())
    channel.send_block(dataclasses.replace(block(1, 9), events=events))
    return sink.blocks


def test_key_and_headers_are_made_of_templates() -> None:
    one = event(1, headers={"tenant": "acme", "n": 2})
    ((found,),) = [
        each.events
        for each in sent("key={header:tenant}/{type}&header.from={topic} {header:n}", one)
    ]
    assert (found.key, found.headers["from"]) == ("acme/moved", f"{TOPIC} 2")
    assert (found.event_id, found.payload) == (one.event_id, one.payload)


def test_a_structured_event_is_one_to_the_sdk() -> None:
    ((found,),) = [each.events for each in sent("envelope=structured", event(1))]
    assert found.content_type == "application/cloudevents+json"
    judged = JSONFormat().read(None, found.payload)
    assert isinstance(judged, CloudEvent)
    assert judged.get_id() == str(event(1).event_id)
    assert found.payload == to_json(event(1))


def test_types_and_headers_choose() -> None:
    events = [
        event(1, type="order.paid", headers={"tenant": "acme"}),
        event(2, type="order.paid", headers={"tenant": "other"}),
        event(3, type="other", headers={"tenant": "acme"}),
        event(4, type="order.sent"),
        event(5, type="stock", headers={"tenant": "acme"}),
    ]
    (found,) = sent("type=order.*&type=stock&where.tenant=ac*", *events)
    assert [each.sequence for each in found.events] == [1, 5]


def test_events_choose_their_topic_and_each_gets_its_part() -> None:
    events = [event(1, type="a"), event(2, type="b"), event(3, type="a")]
    first, second = sent("to=out.{type}", *events)
    assert (first.topic, [each.sequence for each in first.events]) == ("out.a", [1, 3])
    assert (second.topic, second.place, second.source_topic) == ("out.b", "out.b", TOPIC)
    (one,) = sent("to=out.{topic}", *events)
    assert (one.topic, one.place, len(one.events)) == (f"out.{TOPIC}", "", 3)


def test_a_chosen_topic_is_proven_again_when_its_source_has_grown() -> None:
    """Guard: RoutedSink.require."""
    inner = Taking()
    sink = RoutedSink(inner, parse_routing("to={type}")[0])
    for partitions in (1, 1, 3, 3):
        sink.preflight(TOPIC, partitions)
        sink.open(lease()).send_block(block(1, 1))
    assert [partitions for _, partitions in inner.proven] == [1, 3]


def test_what_a_template_lacks_refuses_the_event_and_sends_nothing() -> None:
    sink = Taking()
    routed = RoutedSink(sink, parse_routing("to={header:tenant}")[0])
    whole = dataclasses.replace(
        block(1, 2), events=(event(1, headers={"tenant": "a"}), event(2, headers={}))
    )
    with pytest.raises(EventRefused, match="no header tenant") as refused:
        routed.open(lease()).send_block(whole)
    assert (refused.value.sequence, sink.blocks) == (2, [])


def test_a_place_that_was_sent_less_has_lost_nothing() -> None:
    """And what it was sent and lacks is told."""
    later = dataclasses.replace(block(11, 20), passed={"": 7})
    given: dict[str, Any] = {"resend": False, "skip": lambda *_: None}
    assert len(left(later, SinkEnd(1, 7), "it", **given)) == 10
    with pytest.raises(SinkBehind):
        left(later, SinkEnd(1, 6), "it", **given)
    with pytest.raises(SinkBehind):  # without rules everything before was sent
        left(block(11, 20), SinkEnd(1, 7), "it", **given)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("jsonl:/x#envelope=binary", "does not send events in the form binary"),
        ("jsonl:/x#to=a", "no topics to choose"),
        ("jsonl:/x#tombstones=true", "no tombstones"),
        ("jsonl:/x#colour=red", "which is no rule"),
        ("kafka://h/p#envelope=batch", "form batch"),
        ("kafka://h/p#envelope=odd", "no envelope 'odd'"),
        ("kafka://h/p#to={colour}", "{colour}"),
        ("kafka://h/p#to={topic", "brace"),
        ("kafka://h/p#key=fixed", "a login or a secret"),
        ("jsonl:/x#key=fixed", "no template"),
        ("kafka://h/p#tombstones=maybe", "neither true nor false"),
        ("kafka://h/p#type=", "is empty"),
        ("kafka://h/p#header.token=abc", "a login or a secret"),
        ("webhook+https://h/p#envelope=binary&batch=3", "batch= and envelope=binary"),
    ],
)
def test_what_a_sink_cannot_do_is_refused(address: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_sink(address)
    assert said in str(refused.value)


def test_rules_stand_behind_an_address() -> None:
    address = with_routing("kafka://h/p?create=true", [("to", "a.{type}"), ("type", "x y&z")])
    routing, rest = parse_routing(address.partition("#")[2])
    assert (routing.to and routing.to.text, routing.types, rest) == ("a.{type}", ("x y&z",), "")
    require_no_secret(with_routing(address, [("key", "{header:tenant}")]), "here")
    with pytest.raises(ConfigurationError, match="given twice"):
        with_routing(address, [("to", "b")])
    assert with_routing("jsonl:x", []) == "jsonl:x"
    assert routing_of(Taking()) == Routing()


def test_the_binary_form_over_http_is_read_back() -> None:
    from ops.sinks.webhook import WebhookSink

    sink = open_sink("webhook+https://h/p#envelope=binary&signature=none")
    assert isinstance(sink, RoutedSink)
    inner = sink._sink
    assert isinstance(inner, WebhookSink)
    one = event(1, headers={"subject": "\u00fc 100%"})
    headers = inner.open(lease())._form(one)
    found = read_binary(headers, one.payload)
    assert found.attributes["subject"] == "\u00fc 100%"
    assert json.loads(found.data) == {"amount": 1}
