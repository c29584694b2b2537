"""The uses of keys come to the database."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from consumers.gateway import uses
from consumers.gateway.uses import Uses
from penstock import accounts
from tests.contract.databases import ContractDatabase
from tests.contract.gateway.kit import gateway_of
from tests.contract.gateway.sqs_kit import sqs_of


def test_what_was_counted_is_in_the_database_when_the_gateway_has_stopped(
    shared_database: ContractDatabase,
) -> None:
    with gateway_of(shared_database) as gateway:
        client = gateway.client("used")
        assert client.key is not None
        for _ in range(3):
            assert client("GET", "/queues").status == 200
        assert client("GET", "/queues", headers={"Authorization": "Key a.b"}).status == 401
        sqs_of(client).list_queues()
    found = accounts.keys_of(shared_database.connect(), "used")
    assert [(each.key_id, each.uses) for each in found] == [(client.key.key_id, 4)]
    assert found[0].last_used_at is not None


class StubPool:
    """Keeps what it is told, unless the database is away."""

    def __init__(self) -> None:
        self.noted: list[dict[str, int]] = []
        self.is_away = False

    async def run(self, principal: object, work: Any) -> None:
        if self.is_away:
            raise OSError
        self.noted.append(work.keywords["uses"])


def test_they_are_told_in_batches_and_none_is_lost_by_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uses, "MOST_NOTED", 2)
    monkeypatch.setattr(uses, "MOST_COUNTED", 3)
    pool = StubPool()
    counted = Uses(pool)  # type: ignore[arg-type]
    for key_id in "aabcd":  # there is room for three keys
        counted.count(key_id)
    pool.is_away = True
    asyncio.run(counted.note())
    pool.is_away = False
    asyncio.run(counted.note())
    asyncio.run(counted.note())
    assert pool.noted == [{"a": 2, "b": 1}, {"c": 1}]
    assert sum(map(Counter, pool.noted), Counter()) == Counter("aabc")
