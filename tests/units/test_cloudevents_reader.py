"""Reading CloudEvents strictly, with the `cloudevents` SDK as the judge of what is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given, strategies as st

from ops.sinks.cloudevents import attributes, to_http, to_json, to_properties
from penstock.cli.cloudevents import check
from penstock.errors import NotACloudEvent
from penstock.publishing.cloudevents import read_batch, read_binary, read_structured
from tests.relay.blocks import event

LEAST = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t"}


def test_what_relays_send_is_read_back_in_every_form() -> None:
    one = event(3, headers={"subject": "account \u00fc", "x": 1})
    there = attributes(one)
    line = read_structured(to_json(one))
    assert (line.attributes, line.data) == (there, {"amount": 3})
    (in_batch,) = read_batch(b"[" + to_json(one) + b"]")
    assert in_batch == line
    texts = {name: str(value) for name, value in there.items()}
    for headers, prefix in ((to_properties(one), "ce_"), (to_http(one), "ce-")):
        binary = read_binary(headers, one.payload, prefix)
        assert (binary.attributes, binary.data) == (texts, one.payload)


def test_an_empty_payload_is_no_data() -> None:
    assert read_structured(json.dumps(LEAST)).data is None
    assert read_structured(json.dumps(LEAST | {"data": None})).data is None
    assert read_structured(to_json(event(1, payload=b""))).data == b""
    assert read_binary(to_properties(event(1, payload=b"")), b"", "ce_").data is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"specversion": None}, '"specversion" is missing'),
        ({"specversion": "0.3"}, '"specversion" is not 1.0'),
        ({"id": None}, '"id" is missing'),
        ({"id": ""}, '"id" is no text'),
        ({"id": 7}, '"id" is no text'),
        ({"source": "a b"}, '"source" is no URI'),
        ({"type": None}, '"type" is missing'),
        ({"type": "a\x07"}, '"type" has characters'),
        ({"subject": ""}, '"subject" is no text'),
        ({"time": "yesterday"}, '"time" is no time'),
        ({"time": "2026-13-01T00:00:00Z"}, '"time" is no time'),
        ({"time": "2026-01-01T00:00:00"}, '"time" is no time'),
        ({"datacontenttype": "json"}, '"datacontenttype" is no media type'),
        ({"dataschema": "schema.json"}, '"dataschema" is no URI'),
        ({"Subject": "a"}, '"Subject" cannot name'),
        ({"extension": {"a": 1}}, '"extension" is no text'),
        ({"extension": 1.5}, '"extension" is no text'),
        ({"extension": 2**31}, '"extension" is no text'),
        ({"data": 1, "data_base64": ""}, "data and data_base64"),
        ({"data_base64": "=a"}, "data_base64 is not base64"),
        ({"data_base64": 1}, "data_base64 is not base64"),
    ],
)
def test_what_is_none_is_refused_and_its_attribute_named(
    change: dict[str, Any], named: str
) -> None:
    given = {name: value for name, value in (LEAST | change).items() if value is not None}
    with pytest.raises(NotACloudEvent, match=named):
        read_structured(json.dumps(given))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[]", "is a JSON object"),
        ("{", "is not JSON"),
        (b"\xff", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"id":"1","id":"2"}', '"id" is there twice'),
        ('{"data":NaN}', "NaN"),
    ],
)
def test_what_is_no_json_object_is_refused(text: str | bytes, named: str) -> None:
    with pytest.raises(NotACloudEvent, match=named):
        read_structured(text)


def test_the_event_of_a_batch_and_the_header_are_named() -> None:
    with pytest.raises(NotACloudEvent, match='event 1 of the batch: the attribute "id" is missing'):
        read_batch(json.dumps([LEAST, {"specversion": "1.0"}]))
    with pytest.raises(NotACloudEvent, match="not a list"):
        read_batch(json.dumps(LEAST))
    binary = {f"ce-{name}": value for name, value in LEAST.items()}
    for more, named in (({"ce-data": "x"}, '"ce-data"'), ({"ce-subject": "%ff"}, '"ce-subject"')):
        with pytest.raises(NotACloudEvent, match=named):
            read_binary(binary | more, b"")


_TEXTS = st.text(st.sampled_from("a1\u00fc \x07\ufffe/:%"), max_size=4)
_VALUES = st.one_of(_TEXTS, st.integers(-(2**40), 2**40), st.booleans(), st.floats(0, 1), st.none())


@given(st.dictionaries(st.sampled_from(["id", "source", "type", "subject", "ext"]), _VALUES))
def test_what_is_taken_the_sdk_takes_too(change: dict[str, Any]) -> None:
    text = json.dumps(LEAST | change)
    try:
        found = read_structured(text)
    except NotACloudEvent:
        return
    # The format says that null is as if it was not there, and the SDK does not know it.
    there = {name: value for name, value in (LEAST | change).items() if value is not None}
    judge = JSONFormat().read(None, json.dumps(there).encode())
    assert judge.get_id() == found.attributes["id"]


def test_the_command_names_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(to_json(event(1)) + b"\n" + to_json(event(2)) + b"\n")
    check(str(file))
    file.write_bytes(b"[" + to_json(event(1)) + b"]")
    check(str(file), batch=True)
    assert "2 CloudEvents" in capsys.readouterr().err
    with pytest.raises(NotACloudEvent, match="line 1"):
        check(str(file))
