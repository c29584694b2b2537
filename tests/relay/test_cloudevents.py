"""The CloudEvents forms, with the `cloudevents` SDK as the judge."""

from __future__ import annotations

import base64
import json
from datetime import timedelta, timezone
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given, strategies as st

from ops.sinks.cloudevents import attributes, to_json, to_properties
from tests.relay.blocks import event

#: A sink writes a line twice and must write the very same one, also after an upgrade.
GOLDEN = (
    b'{"specversion":"1.0","id":"3a0222b7-b075-5c91-b464-3da0647cf6e0","source":"/bank/accounts",'
    b'"type":"moved","time":"2026-11-21T12:00:05.000250Z","datacontenttype":"application/json",'
    b'"partitionkey":"account-5","sequence":"0000000000000000005",'
    b'"recordedtime":"2026-11-21T12:00:06.000250Z","penstockpartition":0,"penstockhistory":1,'
    b'"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",'
    b'"penstockheaders":"{\\"X-Id\\":\\"7\\"}","data":{"amount":1.10}}'
)


def read(line: bytes) -> CloudEvent:
    """What the SDK makes of it; it raises on what the specification does not allow."""
    found = JSONFormat().read(None, line)
    assert isinstance(found, CloudEvent)
    return found


def test_golden_line() -> None:
    headers = {
        "X-Id": "7",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    assert to_json(event(5, headers=headers, payload=b'{"amount":1.10}')) == GOLDEN


def test_the_sdk_reads_every_attribute() -> None:
    one = event(3, headers={"subject": "account 3", "traceparent": "00-ab", "tracestate": "a=b"})
    found = read(to_json(one))
    assert found.get_id() == str(one.event_id)
    assert found.get_source() == "/bank/accounts"
    assert found.get_type() == "moved"
    assert found.get_time() == one.created_at
    assert found.get_subject() == "account 3"
    assert found.get_datacontenttype() == "application/json"
    assert found.get_extension("partitionkey") == "account-3"
    assert found.get_extension("sequence") == "0000000000000000003"
    assert found.get_extension("traceparent") == "00-ab"
    assert found.get_extension("tracestate") == "a=b"
    assert found.get_data() == {"amount": 3}


@pytest.mark.parametrize(
    ("content_type", "payload", "member"),
    [
        ("application/json", b'{"a": [1.10, "\\u00e9"]}', "data"),
        ("application/vnd.bank+json; charset=UTF-8", b"[]", "data"),
        ("application/json", b' {\n "pretty":\r\n 1 }\n', "data"),
        ("application/json", b"", "data_base64"),
        ("application/json", b"{", "data_base64"),
        ("application/json", b"NaN", "data_base64"),
        ("application/json", b"\xef\xbb\xbf{}", "data_base64"),
        ("application/json", b"\xff", "data_base64"),
        ("application/json", b"[" * 100_000, "data_base64"),
        ("application/json", b"[" * 500 + b"]" * 500, "data_base64"),
        ("application/json; charset=latin-1", b'"\xe9"', "data_base64"),
        ("text/plain", "line 1\nline 2 \u2028 \x00".encode(), "data"),
        ("text/plain; charset=iso-8859-1", b"\xe9", "data_base64"),
        ("text/plain", b"\xff", "data_base64"),
        ("application/octet-stream", b"{}", "data_base64"),
        ("", b"{}", "data_base64"),
    ],
)
def test_the_payload_survives(content_type: str, payload: bytes, member: str) -> None:
    one = event(1, content_type=content_type, payload=payload)
    line = to_json(one)
    assert b"\n" not in line
    found = json.loads(line)
    assert member in found
    if member == "data_base64":
        assert base64.b64decode(found["data_base64"]) == payload
        assert read(line).get_data() == payload
    elif content_type.startswith("text/"):
        assert found["data"].encode() == payload
    else:
        assert found["data"] == json.loads(payload)


def test_numbers_of_a_json_payload_keep_their_digits() -> None:
    payload = b'{"a": 1.10, "b": 12345678901234567890.123456789012345678901, "c": 1e400, "a": 2}'
    assert payload in to_json(event(1, payload=payload))


def test_headers_that_are_no_attributes_travel_together() -> None:
    headers = {
        "id": "forged",
        "sequence": "0",
        "X-Big": 2**70,
        "ok": "line\nbreak",
        "dataschema": "/s",
    }
    found = attributes(event(1, headers=headers))
    assert found["id"] == str(event(1).event_id)
    assert found["dataschema"] == "/s"
    kept = {name: value for name, value in headers.items() if name != "dataschema"}
    assert json.loads(str(found["penstockheaders"])) == kept


def test_binary_form() -> None:
    found = to_properties(event(9, headers={"traceparent": "00-ab"}))
    assert found["ce_specversion"] == "1.0"
    assert found["ce_sequence"] == "0000000000000000009"
    assert found["ce_traceparent"] == "00-ab"
    assert found["content-type"] == "application/json"
    assert all(isinstance(value, str) for value in found.values())


def test_the_time_zone_of_the_session_makes_no_difference() -> None:
    one = event(1)
    elsewhere = timezone(timedelta(hours=5, minutes=30))
    other = event(1, created_at=one.created_at.astimezone(elsewhere))
    assert to_json(other) == to_json(one)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30)


@given(
    key=st.none() | TEXT,
    kind=TEXT,
    content_type=st.sampled_from(["application/json", "text/plain", "x/y", ""]),
    headers=st.dictionaries(TEXT, TEXT | st.integers() | st.none(), max_size=4),
    payload=st.binary(max_size=60) | TEXT.map(str.encode),
)
def test_any_event_is_one_line_that_the_sdk_reads(**fields: Any) -> None:
    kind = fields.pop("kind")
    one = event(1, type=kind, **fields)
    line = to_json(one)
    assert line.count(b"\n") == 0
    found = json.loads(line)
    assert attributes(one).items() <= found.items()
    assert found.keys() - attributes(one).keys() in ({"data"}, {"data_base64"})
    assert read(line).get_type() == (kind or "penstock.event")
    assert to_json(one) == line


@pytest.mark.parametrize(
    "changes",
    [{}, {"key": "", "type": "", "content_type": ""}, {"headers": {"subject": "a", "B": 1}}],
)
def test_the_binary_form_has_the_same_attributes(changes: dict[str, Any]) -> None:
    """What events share is made once: that is all that to_properties does in another way."""
    one = event(9, **changes)
    wanted = {f"ce_{name}": str(value) for name, value in attributes(one).items()}
    if "ce_datacontenttype" in wanted:
        wanted["content-type"] = wanted.pop("ce_datacontenttype")
    assert to_properties(one) == wanted
