"""A call of the API as its handler sees it, and what the handlers share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec

from consumers.gateway.access import Access, AccountCaller
from consumers.gateway.answers import GatewayAnswer, Refused
from consumers.gateway.credentials.shown import ShownRequest
from consumers.gateway.groups import ConsumerGroups
from consumers.gateway.polls import Polls
from consumers.gateway.pool import Pool
from consumers.gateway.present import Present
from consumers.gateway.publishing import Coalescer
from consumers.gateway.room import PART_BYTES, AnswerRoom, AnswerShare
from consumers.gateway.settings import GatewaySettings
from consumers.gateway.tails import Tails
from consumers.gateway.uses import Uses
from penstock.accounts import Acting

T = TypeVar("T")

_LONGEST_NUMBER = 20

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


async def send_parts(send: Send, data: bytes) -> None:
    """Send some of an answer in parts: what waits for a caller is held once.

    Who takes too little is cut off by the protocol.
    """
    for begin in range(0, len(data), PART_BYTES):
        part = data[begin : begin + PART_BYTES]
        await send({"type": "http.response.body", "body": part, "more_body": True})


class Gone(Exception):
    """The caller has hung up: there is nobody to answer."""


@dataclass(slots=True)
class Services:
    """What all calls of a process share."""

    settings: GatewaySettings
    access: Access
    pool: Pool
    #: For publishes that may wait for another transaction.
    ordered: Pool
    publishes: Coalescer
    tails: Tails
    groups: ConsumerGroups
    present: Present
    room: AnswerRoom
    uses: Uses
    polls: Polls = field(default_factory=Polls)


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One call by a caller who may make it."""

    services: Services
    caller: AccountCaller
    shown: ShownRequest
    params: Mapping[str, str]
    receive: Receive
    send: Send
    #: Its part of the room for all answers.
    share: AnswerShare

    def address(self, name: str) -> str:
        """A name of the account, as the log knows it: below the account's namespace."""
        return f"{self.caller.account}/{self.params[name]}"

    async def run(self, work: Callable[[Any], T]) -> T:
        """What ``work`` returns for a connection that acts for the account, in a transaction."""
        return await self.services.pool.run(self.caller.principal, work)

    async def alone(self, work: Callable[[Any, Acting], T]) -> T:
        """The same for a single call, which names the account by itself: that costs less."""
        return await self.services.pool.call(self.caller.principal, work)

    def queries(self) -> Mapping[str, str]:
        """The parameters of the query; Refused when one is there twice."""
        try:
            given = parse_qs(
                self.shown.query, keep_blank_values=True, errors="strict", max_num_fields=100
            )
        except ValueError:
            raise Refused(400, "the query cannot be read") from None
        twice = [name for name, values in given.items() if len(values) > 1]
        if twice:
            raise Refused(400, f"{twice[0][:80]!r} is there twice in the query")
        return {name: value for name, (value,) in given.items()}

    def body(self, kind: type[T]) -> T:
        """The body as JSON of this kind."""
        try:
            return msgspec.json.decode(self.shown.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(400, f"the body is not as expected: {error}") from None

    async def unless_gone(self, work: Awaitable[T]) -> T:
        """What ``work`` returns; Gone, and it is cancelled, when the caller hangs up."""
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Gone
        finally:
            for each in (task, gone):
                each.cancel()
            await asyncio.wait({task, gone})

    async def _gone(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass


Handler = Callable[[HttpCall], Awaitable[GatewayAnswer | None]]


def number(
    given: Mapping[str, str], name: str, default: float, lowest: float, highest: float
) -> Any:
    """A number of the query within its bounds; with a whole default, a whole one."""
    text = given.get(name)
    if text is None:
        return default
    kind = int if isinstance(default, int) else float
    try:
        value = kind(text[:_LONGEST_NUMBER])
    except ValueError:
        value = kind(-1)
    if not lowest <= value <= highest:
        what = "a whole number" if kind is int else "a number"
        raise Refused(400, f"{name} has to be {what} from {lowest:g} to {highest:g}")
    return value
