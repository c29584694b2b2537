"""As much of a web server as a page's example needs: a lifespan, and requests in it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import ModuleType
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse


class FastAPI(Starlette):
    """What the example uses of FastAPI, which is a Starlette with decorators for its routes."""

    def post(self, path: str) -> Callable[[Any], Any]:
        def decorate(function: Any) -> Any:
            async def endpoint(request: Request) -> JSONResponse:
                return JSONResponse(await run_in_threadpool(function, **request.path_params))

            self.add_route(path, endpoint, methods=["POST"])
            return function

        return decorate


@contextmanager
def importable(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """`from fastapi import FastAPI` finds the class above."""
    module = ModuleType("fastapi")
    module.FastAPI = FastAPI  # type: ignore[attr-defined]
    with patch.context() as own:
        own.setitem(sys.modules, "fastapi", module)
        yield


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[None]:
    """The application between the two messages of its lifespan."""
    to_app: asyncio.Queue[Any] = asyncio.Queue()
    told: asyncio.Queue[Any] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    running = asyncio.create_task(app(scope, to_app.get, told.put))
    await to_app.put({"type": "lifespan.startup"})
    assert (await told.get())["type"] == "lifespan.startup.complete"
    try:
        yield
    finally:
        await to_app.put({"type": "lifespan.shutdown"})
        assert (await told.get())["type"] == "lifespan.shutdown.complete"
        await running


async def post(app: Any, path: str) -> int:
    """The status of the answer to a request without a body."""
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(
        {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": path, "raw_path": path.encode(), "root_path": "",
            "query_string": b"", "headers": [], "client": None, "server": None,
        },
        receive,
        send,
    )  # fmt: skip
    (status,) = statuses
    return status
