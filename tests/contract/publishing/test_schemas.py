"""The registry of schemas: versions, compatibility, and what is refused at publish and relay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ops.relay.relay import Relay
from ops.sinks.address import open_sink
from penstock import database
from penstock.errors import IncompatibleSchema, InvalidArgument, SchemaMismatch
from penstock.publishing.publish import publish, publish_batch
from penstock.publishing.schemas import registry
from penstock.publishing.schemas.registry import delete_schema, list_schemas, set_schema
from penstock.records import Message
from penstock.subscriptions import stream
from penstock.subscriptions.dead_letters import dead_letters
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count
from tests.kit.log import drain, topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION

INTEGER, NUMBER, TEXT = (json.dumps({"type": each}) for each in ("integer", "number", "string"))
AVRO_INT, AVRO_LONG = '"int"', '"long"'


@pytest.fixture
def own(db: ContractDatabase) -> Any:
    """A connection; the topic has one partition."""
    made = db.connect()
    topic(made, 1, STREAM)
    return made


def test_versions_follow_each_other_and_go_with_their_topic(db: ContractDatabase, own: Any) -> None:
    assert set_schema(own, STREAM, INTEGER, type="moved") == 1
    assert set_schema(own, STREAM, INTEGER, type="moved") == 1  # nothing changes
    assert set_schema(own, STREAM, NUMBER, type="moved", compatibility="full") == 2
    assert set_schema(own, STREAM, AVRO_INT, kind="avro") == 1
    found = list_schemas(own, STREAM)
    assert [(each.type, each.version, each.kind) for each in found] == [
        ("", 1, "avro"), ("moved", 2, "json"),
    ]  # fmt: skip
    assert found[1].compatibility == "full"
    older = list_schemas(own, STREAM, type="moved", all_versions=True)
    assert [(each.version, each.definition) for each in older] == [(2, NUMBER), (1, INTEGER)]
    assert delete_schema(own, STREAM, type="moved") == 2
    assert delete_schema(own, STREAM, type="moved") == 0
    names.delete_topic(own, STREAM)
    assert count(db, "topic_schemas") == 0


@proves("a schema holds")
@pytest.mark.parametrize(
    ("kind", "narrow", "wide"),
    [("json", INTEGER, NUMBER), ("avro", AVRO_INT, AVRO_LONG)],
)
def test_each_compatibility(own: Any, kind: str, narrow: str, wide: str) -> None:
    allowed = {
        "none": {"wider", "narrower"},
        "backward": {"wider"},
        "forward": {"narrower"},
        "full": set(),
    }
    for compatibility, fits in allowed.items():
        for step, (before, after) in {
            "wider": (narrow, wide), "narrower": (wide, narrow),
        }.items():  # fmt: skip
            name = f"{compatibility}/{step}"
            set_schema(own, STREAM, before, type=name, kind=kind, compatibility=compatibility)
            if step in fits:
                assert set_schema(own, STREAM, after, type=name, kind=kind) == 2
                continue
            with pytest.raises(IncompatibleSchema, match=compatibility):
                set_schema(own, STREAM, after, type=name, kind=kind)
            # Who wants it all the same says so first.
            set_schema(own, STREAM, before, type=name, kind=kind, compatibility="none")
            assert set_schema(own, STREAM, after, type=name, kind=kind) == 3
    other = ("avro", AVRO_INT) if kind == "json" else ("json", INTEGER)
    with pytest.raises(IncompatibleSchema, match="of the kind"):
        set_schema(own, STREAM, other[1], type="backward/wider", kind=other[0])


@proves("a schema holds", guard="the version that was compared")
def test_who_has_compared_with_another_version_is_refused(own: Any) -> None:
    set_schema(own, STREAM, INTEGER)
    given = {"topic": STREAM, "type": "", "kind": "json", "definition": NUMBER}
    with pytest.raises(InvalidArgument, match="version 1 of the schema is in force, and 0"):
        database.call(own, "set_schema", **given, compatibility="none", after_version=0)
    for wrong in ({"kind": "xml"}, {"compatibility": "perhaps"}):
        with pytest.raises(InvalidArgument):
            database.call(own, "set_schema", **{**given, "compatibility": "none",
                          "after_version": 1, **wrong})  # fmt: skip
        with pytest.raises(InvalidArgument):
            set_schema(own, STREAM, NUMBER, **wrong)


@proves("a schema holds")
def test_what_does_not_fit_is_not_published(db: ContractDatabase, own: Any) -> None:
    set_schema(own, STREAM, INTEGER, type="moved")
    set_schema(own, STREAM, TEXT)
    publish(own, STREAM, b"1", type="moved", checked=True)
    publish(own, STREAM, b'"x"', type="any other", checked=True)
    with pytest.raises(SchemaMismatch, match=r"version 1 of the schema of 'moved'.*type"):
        publish(own, STREAM, b'"secret"', type="moved", checked=True)
    many = [Message(STREAM, each, type="moved") for each in (b"1", b"2", b"x")]
    with pytest.raises(SchemaMismatch, match="event 2 for"):
        publish_batch(own, many, checked=True)
    assert count(db, "events") == 2
    publish(own, STREAM, b'"x"', type="moved")  # who does not ask is not checked
    assert count(db, "events") == 3


@proves("a schema holds")
def test_a_relay_gives_up_what_does_not_fit(db: ContractDatabase, own: Any, tmp_path: Path) -> None:
    set_schema(own, STREAM, INTEGER, type="moved")
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    for payload in (b"1", b'"secret"', b"3"):
        publish(own, STREAM, payload, type="moved", partition=0)
    drain(own)
    sink = open_sink(f"jsonl:{tmp_path}#schemas=true")
    done = Relay(db.url, SUBSCRIPTION, sink).run_for(30)
    assert (done.events, done.dead_letters, done.drained) == (2, 1, True)
    (letter,) = dead_letters(own, SUBSCRIPTION)
    assert letter.reason == (
        "it does not fit version 1 of the schema of 'moved': at / it is not type \"integer\""
    )
    assert registry.in_force(own, STREAM)["moved"].misfit(b"3") == ""
    sink.close()
