"""Every call of the table: the level that it needs, other accounts, and names that are missing."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

import pytest

from consumers.gateway.app import OPERATIONS
from consumers.gateway.credentials.shown import LEVELS
from consumers.gateway.operations import Operation
from consumers.gateway.queues import Receipts
from consumers.gateway.topics import NewEvent
from tests.contract.gateway.kit import Client, Reply
from tests.kit.proof import proves

RECEIPT = "1.1.00000000000000000000000000000001"
#: What each call needs to be one that could succeed.
BODIES: dict[str, object] = {
    "updateMessage": {},
    "createQueue": {"queueName": "orders"},
    "createTopic": {"topic": "orders"},
    "publishBatch": {"events": [{"text": "x"}]},
    "receive": {},
    "redrive": {},
    "createSubscription": {"subscription": "billing", "topics": ["orders"]},
    "commit": {
        "consumer": "one",
        "positions": [
            {"topic": "orders", "partition": 0, "lease_epoch": 1, "sequence": 1, "history": 1}
        ],
    },
    **{name: {"receipts": [RECEIPT]} for name in ("acknowledge", "release", "reject", "extend")},
}
QUERIES = {
    "updateMessage": f"?popReceipt={RECEIPT}.00000001",
    "ackMessage": f"?popReceipt={RECEIPT}.00000001",
    "fetch": "?from=1",
}


def call(client: Client, each: Operation, account: str | None = None) -> Reply:
    path = re.sub(r"\{\w+(:path)?\}", "none", each.path)
    path += QUERIES.get(each.name, "")
    return client(each.method, path, BODIES.get(each.name, b""), account=account)


@proves("D11 over HTTP")
def test_each_call_needs_its_level_and_its_own_account(shop: Client, bank: Client) -> None:
    for each in OPERATIONS:
        for level in each.levels:
            others = shop.by_address("".join(x for x in LEVELS if x != level))
            assert call(others, each).status == 403, (each.name, level)
        foreign = call(bank, each, shop.account)
        assert (foreign.status, foreign.body) == (401, b""), each.name
        nobody = call(replace(shop, key=None), each)
        assert (nobody.status, nobody.body) == (401, b""), each.name


def test_each_call_with_its_level_alone_is_answered_as_the_table_says(shop: Client) -> None:
    for each in OPERATIONS:
        reply = call(shop.by_address(each.levels), each)
        assert reply.status in each.answers, (each.name, reply)
        if "{" in each.path:
            assert reply.status == 404, (each.name, reply)
            assert reply.json()["operation"] == each.name


@pytest.mark.parametrize("method", ["PATCH", "PUT", "HEAD"])
def test_another_method_is_405_and_another_path_404(shop: Client, method: str) -> None:
    assert shop(method, "/queues").status == 405
    assert shop(method, "/queues/none/messages/next").status == 405
    assert shop(method, "/elsewhere").status == 404


#: What nobody means, and some send.
STRANGE: tuple[object, ...] = (
    None, True, -1, 0, 2**31, 2**63, 10**30, 1.5, 1e300, "", "1", "\x00", "a\x00b", "\u2028",
    "x" * 70_000, "2026-11-26T20:00:00", "9999-12-31T23:59:59Z", [], [None], ["x"] * 2_000, {},
    {"a": "\x00"},
)  # fmt: skip
FIELDS: dict[str, tuple[str, ...]] = {
    "createQueue": ("queueName", "maxDeliveryCount", "strictFifo", "dlqName"),
    "updateMessage": ("message", "newInvisibilitySeconds"),
    "createTopic": ("topic", "partitions", "strategy"),
    "publishBatch": tuple(NewEvent.__struct_fields__),
    "receive": ("max_events", "visibility_seconds"),
    "redrive": ("letters",),
    "createSubscription": ("subscription", "topics", "start"),
    "commit": ("consumer", "positions"),
    **dict.fromkeys(("acknowledge", "release", "reject", "extend"), Receipts.__struct_fields__),
}


def strange(each: Operation) -> Iterator[tuple[str, object]]:
    """Queries and bodies of a call, each with one strange thing."""
    path = re.sub(r"\{\w+(:path)?\}", "there", each.path)
    path += QUERIES.get(each.name, "")
    for value in STRANGE:
        if not isinstance(value, list | dict):
            text = quote(str(value)[:2_000])
            for query in each.queries:
                joined = f"{path}{'&' if '?' in path else '?'}{query.name}={text}"
                yield joined, BODIES.get(each.name, b"")
        for name in FIELDS.get(each.name, ()):
            if each.name == "publishBatch":
                yield path, {"events": [{"text": "x", name: value}]}
            else:
                yield path, {**_body(each), name: value}
    if each.takes:
        for body in (b"", b"{", b"\xff", b"[" * 5_000, b'{"a": "\\ud800"}', b'{"x": NaN}'):
            yield path, body


def _body(each: Operation) -> dict[str, object]:
    body = BODIES.get(each.name, {})
    assert isinstance(body, dict)
    return body


@pytest.mark.parametrize("share", [0.05, pytest.param(1.0, marks=pytest.mark.long)])
def test_nothing_that_is_sent_is_an_error_of_the_server(shop: Client, share: float) -> None:
    random_ = random.Random(share)
    assert shop("POST", "/queues", {"queueName": "there"}).status == 201
    told = {"Content-Type": "text/plain"}
    failed: list[object] = []
    for each in OPERATIONS:
        if each.name in {
            *("stream", "listen"),
            *("deleteQueue", "deleteTopic", "deleteSubscription", "purge"),
        }:
            continue
        for path, body in strange(each):
            if random_.random() > share:
                continue
            reply = shop(each.method, path, body, headers=told)
            if reply.status >= 500:
                failed.append((each.name, path[:200], str(body)[:200], reply.body))
    assert failed == []
