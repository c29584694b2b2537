"""Every call of the table: the level that it needs, other accounts, and names that are missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consumers.gateway.app import OPERATIONS
from consumers.gateway.credentials.shown import LEVELS
from consumers.gateway.operations import Operation
from tests.contract.gateway.kit import Client, Gateway, Reply

RECEIPT = "1.1.00000000000000000000000000000001"
#: What each call needs to be one that could succeed.
BODIES: dict[str, object] = {
    "updateMessage": {},
    "createQueue": {"queueName": "orders"},
    "createTopic": {"topic": "orders"},
    "publishBatch": {"events": [{"text": "x"}]},
    "receive": {},
    "redrive": {},
    **{name: {"receipts": [RECEIPT]} for name in ("acknowledge", "release", "reject", "extend")},
}
QUERIES = {
    "updateMessage": f"?popReceipt={RECEIPT}.00000001",
    "ackMessage": f"?popReceipt={RECEIPT}.00000001",
    "fetch": "?from=1",
}


def call(client: Client, each: Operation, account: str | None = None) -> Reply:
    path = each.path.replace("{queue}", "none").replace("{topic:path}", "none")
    path += QUERIES.get(each.name, "")
    return client(each.method, path, BODIES.get(each.name, b""), account=account)


def test_each_call_needs_its_level_and_its_own_account(gateway: Gateway, shop: Client) -> None:
    bank = gateway.client("bank")
    for each in OPERATIONS:
        for level in each.levels:
            others = shop.by_address("".join(x for x in LEVELS if x != level))
            assert call(others, each).status == 403, (each.name, level)
        foreign = call(bank, each, "shop")
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


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_another_method_is_405_and_another_path_404(shop: Client, method: str) -> None:
    assert shop(method, "/queues").status == 405
    assert shop(method, "/elsewhere").status == 404
