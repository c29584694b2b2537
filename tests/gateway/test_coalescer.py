"""Publishes that go together: which ones make a batch."""

from __future__ import annotations

import asyncio
from uuid import UUID

from consumers.gateway.publishing import Outgoing, _Line as Line, _taken, _Unpublished
from penstock.records import Message
from tests.kit.proof import proves


def unpublished(count: int, *, joined: bool = False) -> list[_Unpublished]:
    made = []
    for number in range(count):
        future: asyncio.Future[UUID] = asyncio.Future()
        made.append(
            _Unpublished(Outgoing(Message("t", b"x"), str(number)), future, joined and number > 0)
        )
    return made


@proves("a FIFO queue of SQS", guard="what is joined goes in one batch")
def test_what_is_joined_goes_in_one_batch() -> None:
    """Guard: is_joined.  Else a group of a FIFO queue could be published out of order."""

    async def run() -> None:
        line = Line()
        line.waiting.extend(unpublished(989))
        for _ in range(2):
            line.waiting.extend(unpublished(10, joined=True))
        assert [len(_taken(line)) for _ in range(2)] == [999, 10]

    asyncio.run(run())
