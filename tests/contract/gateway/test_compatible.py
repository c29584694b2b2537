"""CassieQ's own credentials and its exact answers, for the keys that are listed and no others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pytest

from consumers.gateway.credentials.weak_signatures import address_base, request_base, signed
from tests.contract.gateway.kit import Client, Gateway, Reply, gateway_of
from tests.kit.proof import proves

NEXT = "/queues/mails/messages/next"


def at(seconds: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def old(gateway: Gateway, shop: Client) -> Iterator[Client]:
    """A client of a gateway that lists the account's key; it shows none by itself."""
    assert shop.key is not None
    assert shop("POST", "/queues", {"queueName": "mails"}).status == 201
    with gateway_of(gateway.db, compatible_keys=shop.key.key_id) as compatible:
        yield Client(compatible.port, shop.account)


def secret_of(shop: Client) -> str:
    assert shop.key is not None
    return shop.key.secret


def by_request(old: Client, secret: str, method: str, path: str, *,
               seconds: float = 0.0, body: bytes = b"", sent: str = "") -> Reply:  # fmt: skip
    """A signed request; ``sent`` is another path than the one that is signed."""
    time = at(seconds)
    whole = f"/api/v1/accounts/{old.account}{path.partition('?')[0]}"
    signature = signed(secret, request_base(old.account, method, whole, time))
    headers = {"Authorization": f"Signed {signature}", "x-cassieq-request-time": time}
    return old(method, sent or path, body, headers=headers)


def by_address(
    old: Client, secret: str, method: str, path: str, levels: str = "rpuagcd", *,
    start: str | None = None, end: str | None = None, queue: str | None = None,
    headers: dict[str, str] | None = None, **changed: str,
) -> Reply:  # fmt: skip
    """A signed address; ``changed`` are parameters that are not those that were signed."""
    signature = signed(secret, address_base(old.account, levels, start, end, queue))
    given = {"auth": levels, "sig": signature, "st": start, "et": end, "q": queue} | changed
    query = urlencode({name: value for name, value in given.items() if value})
    return old(method, f"{path}?{query}", b"x" if method == "POST" else b"", headers=headers)


def test_its_three_ways_are_taken(old: Client, shop: Client) -> None:
    secret = secret_of(shop)
    key = {"Authorization": f"Key {secret}"}
    assert old("POST", "/queues/mails/messages", b"one", headers=key).status == 201
    assert by_request(old, secret, "POST", "/queues/mails/messages", body=b"two").status == 201
    assert by_request(old, secret, "GET", f"{NEXT}?invisibilityTimeSeconds=1").status == 204
    assert by_address(old, secret, "POST", "/queues/mails/messages", "p").status == 201
    for levels, status in (("gr", 401), ("rg", 200)):  # they are signed in their order
        reply = by_address(
            old, secret, "GET", "/queues/mails", levels, start=at(-5), end=at(60), queue="mails"
        )
        assert reply.status == status


@proves("a weak signature counts for listed keys only")
def test_its_answers_are_exact(old: Client, shop: Client, bank: Client) -> None:
    secret = secret_of(shop)
    other = secret[:-1] + ("A" if secret[-1] != "A" else "E")
    stranger = replace(old, account="nobody")
    refused = {
        "a wrong secret": by_request(old, other, "GET", NEXT),
        "a wrong key": old("GET", NEXT, headers={"Authorization": f"Key {other}"}),
        "an account that is not there": by_request(stranger, secret, "GET", NEXT),
        "another account": by_request(replace(old, account=bank.account), secret, "GET", NEXT),
        "too old": by_request(old, secret, "GET", NEXT, seconds=-62),
        "from the future": by_request(old, secret, "GET", NEXT, seconds=62),
        "another path": by_request(old, secret, "GET", NEXT, sent="/queues"),
        "an address that is over": by_address(old, secret, "GET", NEXT, end=at(-1)),
        "too early": by_address(old, secret, "GET", NEXT, start=at(60)),
        "of another queue": by_address(old, secret, "GET", NEXT, queue="other"),
        "more levels": by_address(old, secret, "GET", NEXT, "p", auth="pr"),
        "a later end": by_address(old, secret, "GET", NEXT, end=at(5), et=at(60)),
        "a header before the query": by_address(
            old, secret, "GET", NEXT, headers={"Authorization": f"Key {other}"}
        ),
        "no credentials": old("GET", NEXT),
    }
    for what, reply in refused.items():
        assert (reply.status, reply.body) == (401, b""), what
    lacking = by_address(old, secret, "GET", NEXT, "p")
    assert lacking.status == 403
    for seconds in (-57, 57):
        assert by_request(old, secret, "GET", NEXT, seconds=seconds).status == 204
    # What the scheme does not protect: the query, and sending it again.
    other_query = f"{NEXT}?invisibilityTimeSeconds=9"
    assert by_request(old, secret, "GET", NEXT, sent=other_query).status == 204


@proves("a weak signature counts for listed keys only", guard="the list")
def test_a_gateway_that_lists_no_key_takes_none_of_them(shop: Client) -> None:
    """The guard is the list: the same requests are good where it has the key."""
    assert shop("POST", "/queues", {"queueName": "mails"}).status == 201
    bare, secret = replace(shop, key=None), secret_of(shop)
    for reply in (
        by_request(bare, secret, "GET", NEXT),
        by_address(bare, secret, "GET", NEXT),
        bare("GET", NEXT, headers={"Authorization": f"Key {secret}"}),
    ):
        assert (reply.status, reply.body) == (401, b"")
    assert shop("GET", NEXT).status == 204


@proves("a weak signature counts for listed keys only")
def test_other_keys_of_the_account_are_not_meant(
    gateway: Gateway, old: Client, shop: Client
) -> None:
    second = gateway.client(shop.account)
    assert by_request(old, secret_of(second), "GET", NEXT).status == 401
    assert by_request(old, secret_of(shop), "GET", NEXT).status == 204
    assert replace(second, port=old.port)("GET", NEXT).status == 204  # our own way is as before
