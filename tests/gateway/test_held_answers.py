"""A call is present, and its answer has room, until the answer is sent: at both doors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumers.gateway.access import AccountCaller
from consumers.gateway.answers import GatewayAnswer
from consumers.gateway.bodies import Bodies
from consumers.gateway.calls import HttpCall, Services
from consumers.gateway.front import Endpoint
from consumers.gateway.operations import Operation
from consumers.gateway.pool import Principal
from consumers.gateway.present import Present
from consumers.gateway.room import AnswerRoom
from consumers.gateway.settings import GatewaySettings
from consumers.gateway.sqs import door
from consumers.gateway.sqs.calls import SqsCall
from tests.kit.proof import proves

LONG = b"x" * 200_000
CALLER = AccountCaller("shop", Principal("1", "k"), "g", None)


class _Access:
    async def caller(self, *_: object, **__: object) -> AccountCaller:
        return CALLER

    async def aws_signer(self, *_: object) -> Any:
        return SimpleNamespace(signed=SimpleNamespace(region="eu"))

    def aws_caller(self, *_: object) -> AccountCaller:
        return CALLER

    def require_body(self, *_: object) -> None:
        pass


def services_of(room: AnswerRoom) -> Services:
    """What both doors need to answer an account that may have one request at a time."""
    settings = replace(GatewaySettings(url="none"), account_requests=1)
    uses = SimpleNamespace(count=lambda _: None)
    made = SimpleNamespace(
        settings=settings, access=_Access(), present=Present(1), room=room, uses=uses
    )
    return cast(Services, made)


async def _listed(_: HttpCall) -> GatewayAnswer:
    return GatewayAnswer(200, LONG)


async def _sqs_listed(_: SqsCall) -> dict[str, Any]:
    return {"QueueUrls": LONG.decode()}


Answer = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]


@pytest.fixture(params=["http", "sqs"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def door_of(name: str, room: AnswerRoom) -> Iterator[Answer]:
    """A door with a call whose answer is long, and which has taken no room for it."""
    services, bodies = services_of(room), Bodies(1_000)
    if name == "http":
        operation = Operation("GET", "/x", "g", "list", "", _listed, {})
        yield Endpoint(services, operation, bodies)
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(door.OPERATIONS, "ListQueues", ("g", _sqs_listed))
        yield door.SqsDoor(services, bodies)


SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/",
    "raw_path": b"/",
    "query_string": b"",
    "scheme": "https",
    "client": ("127.0.0.1", 1),
    "headers": [(b"host", b"a"), (b"x-amz-target", b"AmazonSQS.ListQueues")],
    "path_params": {"account": "shop"},
}


async def _body() -> Any:
    return {"type": "http.request", "body": b"{}"}


async def status_of(answer: Answer) -> int:
    """The status of a call whose caller takes everything at once."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await answer(dict(SCOPE), _body, send)
    return int(sent[0]["status"])


@proves("memory of answers")
def test_who_takes_its_answer_slowly_is_present_and_has_room(name: str) -> None:
    """Guards: the stack until the answer is sent, and AnswerShare.hold."""

    async def run() -> None:
        room, begun, taken = AnswerRoom(10_000_000), asyncio.Event(), asyncio.Event()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                begun.set()
                await taken.wait()

        with door_of(name, room) as answer:
            slow = asyncio.create_task(answer(dict(SCOPE), _body, send))
            await begun.wait()
            assert room.used >= len(LONG)
            assert await status_of(answer) == 429
            taken.set()
            await slow
            assert room.used == 0
            assert await status_of(answer) == 200

    asyncio.run(run())


@proves("memory of answers")
def test_a_long_answer_without_room_is_503(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumers.gateway.room.PATIENCE_SECONDS", 0.01)

    async def run() -> None:
        room = AnswerRoom(10_000_000)
        room.change("another", 9_900_000)
        with door_of(name, room) as answer:
            assert await status_of(answer) == 503
            room.change("another", -9_900_000)
            assert await status_of(answer) == 200

    asyncio.run(run())
