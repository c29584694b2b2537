"""The calls about failures on asynchronous connections, in the handler's transaction."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from penstock import aio
from penstock.errors import NotRedriven
from penstock.publishing.publish import publish
from penstock.subscriptions import dead_letters, stream
from tests.kit.adapters import ADAPTERS, Asynchronous
from tests.kit.log import drain, topic
from tests.kit.stream import STREAM, SUBSCRIPTION, member_with_lease, stored

ASYNCHRONOUS = [name for name in ADAPTERS if "async" in name]


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_parked_and_redriven(
    connection: psycopg.Connection[Any], database_url: str, name: str
) -> None:
    """Both join the caller's transaction: what is rolled back was not done."""
    topic(connection, 1, STREAM)
    for number in range(2):
        publish(connection, STREAM, b"%d" % number, key="k")
    drain(connection)
    stream.subscribe(connection, SUBSCRIPTION, [STREAM])
    member, lease = member_with_lease(connection, "a")
    assert dead_letters.give_up(connection, member, lease, 1, "bad", attempts=1, park=True)

    async def steps() -> None:
        async with ADAPTERS[name](database_url) as adapter:
            assert isinstance(adapter, Asynchronous)
            for end in (adapter.rollback, adapter.commit):
                await adapter.begin()
                own = adapter.connection
                await aio.commit_parking(own, member, lease, 2, after=1, sequences=[2])
                await end()
            assert stored(connection) == 2
            dead_letters.redrive(connection, SUBSCRIPTION)
            (letter,) = dead_letters.poll_redriven(connection, member, [lease])
            for end in (adapter.rollback, adapter.commit):
                await adapter.begin()
                await aio.finish_redriven(adapter.connection, member, letter)
                await end()
            await adapter.begin()
            with pytest.raises(NotRedriven):
                await aio.finish_redriven(adapter.connection, member, letter)
            await adapter.rollback()

    asyncio.run(steps())
    (left,) = dead_letters.dead_letters(connection, SUBSCRIPTION)
    assert (left.sequence, left.state) == (2, "redriven")
