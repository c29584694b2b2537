"""A database that goes away, and publishes whose outcome nobody knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from consumers.gateway import pool, publishing
from consumers.gateway.credentials.nonces import Nonces
from penstock.accounts import acting
from penstock.publishing.for_accounts import publish_for_accounts
from tests.contract.gateway.kit import Client, Gateway
from tests.kit.log import wait_until
from tests.kit.proof import proves

SESSIONS = {
    "postgres": "SELECT pid FROM pg_stat_activity WHERE usename = %(login)s",
    "mysql": "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = %(login)s",
}
END = {"postgres": "SELECT pg_terminate_backend({})", "mysql": "KILL {}"}


@pytest.fixture
def orders(shop: Client) -> Client:
    """The account with a topic."""
    assert shop("POST", "/topics", {"topic": "orders"}).status == 201
    return shop


def texts(gateway: Gateway, client: Client) -> list[str]:
    gateway.sequence()
    return [each["data"] for each in client("GET", "/topics/orders/events?from=1").json()]


def publish(client: Client, text: str) -> int:
    headers = {"Content-Type": "text/plain"}
    return client("POST", "/topics/orders/events", text.encode(), headers=headers).status


def test_a_session_that_was_cut_while_idle_costs_no_call(gateway: Gateway, orders: Client) -> None:
    dialect = "postgres" if gateway.db.engine == "postgres" else "mysql"
    assert publish(orders, "1") == 201
    sessions = gateway.db.run(SESSIONS[dialect], {"login": gateway.login})
    assert len(sessions) >= 2
    for (session,) in sessions:
        gateway.db.run(END[dialect].format(session))
    wait_until(
        lambda: not {*gateway.db.run(SESSIONS[dialect], {"login": gateway.login})} & {*sessions},
        "the sessions have ended",
    )
    assert publish(orders, "2") == 201
    assert orders("GET", "/queues").status == 200
    assert texts(gateway, orders) == ["1", "2"]


LOST = psycopg.OperationalError("the connection is lost")


def lose_answers(patch: pytest.MonkeyPatch) -> None:
    """What is published is there, and then the connection is lost."""

    @contextmanager
    def lost(connection: Any, account_id: str, key_ids: list[str]) -> Iterator[None]:
        with acting(connection, account_id, key_ids):
            yield
        raise LOST

    def shared(connection: Any, **given: Any) -> list[int]:
        publish_for_accounts(connection, **given)
        raise LOST

    patch.setattr(pool, "acting", lost)
    patch.setattr(publishing, "publish_for_accounts", shared)


@proves("a publish over HTTP")
@pytest.mark.parametrize("query", ["", "?not_before=2020-01-01T00:00:00Z"])
def test_a_publish_of_unknown_outcome_is_503_and_is_not_sent_again(
    gateway: Gateway, orders: Client, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """Also one that shares its transaction with others, and one that does not."""
    assert publish(orders, "1") == 201
    with monkeypatch.context() as patch:
        lose_answers(patch)
        reply = orders(
            "POST", f"/topics/orders/events{query}", b"2", headers={"Content-Type": "text/plain"}
        )
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert texts(gateway, orders) == ["1", "2"]


@proves("a publish over HTTP", guard="again only after a refusal")
def test_without_once_what_is_shared_would_be_sent_again(
    gateway: Gateway, orders: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant."""
    run = pool.Pool._on_own
    with monkeypatch.context() as patch:
        lose_answers(patch)
        patch.setattr(pool.Pool, "_on_own", lambda self, *given, once: run(self, *given))
        assert publish(orders, "1") == 503
    assert texts(gateway, orders) == ["1", "1"]


@proves("a signature counts", guard="nonces")
def test_without_its_nonce_a_signed_request_would_count_again(
    shop: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard that test_a_signed_request_counts_once relies on."""
    headers = shop.sign("GET", "/queues")
    bare = Client(shop.port, shop.account)
    assert bare("GET", "/queues", headers=headers).status == 200
    assert bare("GET", "/queues", headers=headers).status == 401
    monkeypatch.setattr(Nonces, "take", lambda *_: True)
    assert bare("GET", "/queues", headers=headers).status == 200
