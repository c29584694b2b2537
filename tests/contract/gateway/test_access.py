"""Who may call what: three kinds of credentials, levels, queues, times, and other accounts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from penstock import accounts
from tests.contract.gateway.kit import Client, Gateway
from tests.kit.proof import proves

PATH = "/queues/orders"


def made(shop: Client) -> Client:
    assert shop("POST", "/queues", {"queueName": "orders"}).status == 201
    return shop


@proves("a signature counts", how="over HTTP")
def test_a_signed_request_counts_once(shop: Client) -> None:
    made(shop)
    bare = replace(shop, key=None)
    headers = shop.sign("GET", PATH)
    assert bare("GET", PATH, headers=headers).status == 200
    assert bare("GET", PATH, headers=headers).status == 401
    body = b'{"queueName": "others"}'
    assert bare("POST", "/queues", body, headers=shop.sign("POST", "/queues", body)).status == 201
    assert (
        bare("POST", "/queues", body + b" ", headers=shop.sign("POST", "/queues", body)).status
        == 401
    )


def test_a_signed_address_gives_its_levels_in_its_time_for_its_queue(shop: Client) -> None:
    made(shop)("POST", "/queues", {"queueName": "others"})
    reader = shop.by_address("g", queue="orders")
    assert reader("GET", PATH).status == 200
    assert reader("DELETE", PATH).status == 403
    assert reader("GET", "/queues/others").status == 401
    assert reader("GET", "/queues").status == 401
    assert shop.by_address("g")("GET", "/queues").status == 200
    assert shop.by_address("g", reads_only=True)("GET", PATH).status == 200
    assert shop.by_address("c", reads_only=True)("POST", "/queues", {}).status == 401
    late = datetime.now(UTC) + timedelta(hours=1)
    assert (
        shop.by_address("g", start=late, end=late + timedelta(hours=1))("GET", PATH).status == 401
    )
    past = datetime.now(UTC) - timedelta(hours=2)
    assert (
        shop.by_address("g", start=past, end=past + timedelta(hours=1))("GET", PATH).status == 401
    )


def test_a_revoked_key_ends_its_addresses_and_itself_at_once(
    gateway: Gateway, shop: Client
) -> None:
    reader = made(shop).by_address("g")
    assert shop.key is not None
    assert reader("GET", PATH).status == 200
    # Well within the time for which the process believes what it has read of a key.
    accounts.revoke_key(gateway.owner, shop.account, shop.key.key_id)
    assert reader("GET", PATH).status == 401
    assert shop("GET", PATH).status == 401


@proves("D11 over HTTP")
def test_a_key_has_levels_and_may_have_a_queue(gateway: Gateway, shop: Client) -> None:
    made(shop)
    limited = gateway.client(shop.account, levels="rp", queue="orders")
    assert limited("POST", f"{PATH}/messages", b"x").status == 201
    assert limited("GET", PATH).status == 403
    assert limited("DELETE", PATH).status == 403
    assert limited("POST", "/queues/others/messages", b"x").status == 401
    # An address can give no more than its key has.
    assert limited.by_address("gd")("GET", PATH).status == 403


@pytest.mark.parametrize(
    "authorization",
    ["Key x", "Key a.b", "Key", "Bearer x", "Basic eDp5", "Key " + "0" * 24 + "." + "s" * 43],
)
def test_wrong_credentials_are_401_without_a_body(shop: Client, authorization: str) -> None:
    reply = shop("GET", PATH, headers={"Authorization": authorization})
    assert (reply.status, reply.body) == (401, b"")


@proves("D11 over HTTP")
def test_an_account_sees_nothing_of_another(gateway: Gateway, shop: Client, bank: Client) -> None:
    made(shop)("POST", f"{PATH}/messages", b"secret")
    gateway.sequence()
    assert bank("GET", PATH, account=shop.account).status == 401
    assert bank("GET", PATH, account="nobody").status == 401
    assert replace(bank, key=None)("GET", PATH).status == 401
    assert bank("GET", "/queues").json() == []
    foreign, missing = (bank("GET", f"/topics/{name}/partitions") for name in ("orders", "none"))
    assert foreign.status == missing.status == 404
    assert foreign.body.replace(b"orders", b"none") == missing.body
