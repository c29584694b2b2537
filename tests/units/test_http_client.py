"""What the client of the gateway does without one: addresses, waits, and lines."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import (
    BackPressure,
    ConfigurationError,
    GatewayUnavailable,
    InvalidArgument,
    PermissionDenied,
    StaleLease,
)
from penstock.http import GatewayAddress, GatewayClient, calls
from penstock.http.calls import NewMessage
from penstock.http.heard import LineReader, event_of
from penstock.http.verbs import AnswerLost, Attempts, HttpReply, HttpVerb, refuse, refuse_stream

KEY = "0123456789abcdef.secret-of-the-key"


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("https://events.example.com/shop", "/api/v1/accounts/shop"),
        ("https://events.example.com/api/v1/accounts/shop/", "/api/v1/accounts/shop"),
        ("https://example.com/penstock/shop", "/penstock/api/v1/accounts/shop"),
        ("http://127.0.0.1:8080/shop", "/api/v1/accounts/shop"),
        ("http://[::1]:8080/a%20b", "/api/v1/accounts/a%20b"),
    ],
)
def test_an_address_names_a_gateway_and_an_account(url: str, base: str) -> None:
    found = GatewayAddress.of(url, KEY)
    assert found.base == base
    assert "secret" not in repr(found) and "secret" not in repr(GatewayClient(url, KEY))


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("", KEY),
        ("https://events.example.com/shop", ""),
        ("https://events.example.com/shop", "no-secret"),
        ("https://events.example.com/shop", "a.b\r\nX: y"),
        ("https://events.example.com", KEY),
        ("https://user:secret@events.example.com/shop", KEY),
        ("https://events.example.com/shop?key=secret", KEY),
        ("http://events.example.com/shop", KEY),
        ("ftp://events.example.com/shop", KEY),
        ("https://events.example.com:port/shop", KEY),
    ],
)
def test_what_is_no_address_is_refused_and_not_repeated(
    url: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_GATEWAY_URL", raising=False)
    monkeypatch.delenv("PENSTOCK_GATEWAY_KEY", raising=False)
    with pytest.raises(ConfigurationError) as caught:
        GatewayAddress.of(url, key)
    assert "secret" not in str(caught.value).replace("KEY_ID.SECRET", "")


def test_the_environment_names_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_GATEWAY_URL", "https://events.example.com/shop")
    monkeypatch.setenv("PENSTOCK_GATEWAY_KEY", KEY)
    assert GatewayAddress.of().account == "shop"


REFUSED = HttpReply(429, {"retry-after": "2"}, b'{"message": "too much", "error": "BackPressure"}')
AWAY = HttpReply(503, {"retry-after": "1"}, b"{}")


def test_what_is_sent_again_and_what_is_not() -> None:
    safe = calls.publish("orders", NewMessage(b"x"), resend=True)
    unsafe = calls.publish("orders", NewMessage(b"x"), resend=False)
    named = calls.publish("orders", NewMessage(b"x", dedup_key="mine"), resend=False)
    lost, unsent = AnswerLost("x", was_sent=True), AnswerLost("x", was_sent=False)
    repeatable: list[HttpVerb[Any]] = [safe, named, calls.topics()]
    single: list[HttpVerb[Any]] = [unsafe, calls.receive("mails", 1, None, 0)]
    for verb in repeatable:
        assert Attempts(verb, 2, "here").lost(lost) > 0
        assert (Attempts(verb, 2, "here").answered(AWAY) or 0) >= 1
    for verb in single:
        assert Attempts(verb, 2, "here").lost(unsent) > 0
        assert (Attempts(verb, 2, "here").answered(REFUSED) or 0) >= 2
        with pytest.raises(GatewayUnavailable):
            Attempts(verb, 2, "here").lost(lost)
        with pytest.raises(GatewayUnavailable):
            Attempts(verb, 2, "here").answered(AWAY)


def test_attempts_have_an_end() -> None:
    attempts = Attempts(calls.topics(), 3, "here")
    waits = [attempts.answered(REFUSED), attempts.answered(REFUSED)]
    assert None not in waits
    with pytest.raises(BackPressure):
        attempts.answered(REFUSED)


def test_an_error_is_only_one_of_the_package() -> None:
    for name in ("os", "DEFAULT_SCHEMA", "threading", "PenstockError", ["x"], None):
        body = b'{"message": "no", "error": "%s"}' % str(name).encode()
        with pytest.raises(InvalidArgument, match="no"):
            refuse(HttpReply(400, {}, body))
    with pytest.raises(PermissionDenied):
        refuse(HttpReply(401, {}))
    with pytest.raises(GatewayUnavailable):
        refuse(HttpReply(502, {}, b"<html>"))
    with pytest.raises(StaleLease):
        refuse_stream(408, GatewayUnavailable)


def test_lines_become_events() -> None:
    reader = LineReader()
    lines = b": hello\n\nid: 1.0.0\n\nevent: lost\ndata: {}\n\nid: 1.0.1\ndata: x\r\n\r\n"
    found = [each for line in lines.splitlines() if (each := reader.feed(line))]
    assert [(each.kind, each.id, each.data) for each in found] == [
        ("", "1.0.0", ""), ("lost", "", "{}"), ("", "1.0.1", "x"),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a":}', '{"id": 1}', "null", '{"a" 1}'])
def test_what_is_no_event_is_refused(text: str) -> None:
    with pytest.raises(GatewayUnavailable, match="not that of a gateway"):
        event_of(text)


@pytest.mark.parametrize("name", ["", "/a", "a//b", "a/../b", "."])
def test_a_name_does_not_leave_the_account(name: str) -> None:
    with pytest.raises(InvalidArgument):
        calls.fetch(name, 0, 1, 1)
