"""Both clients of the gateway as one, and a road to the gateway that loses answers."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.http import AsyncGatewayClient, GatewayClient
from tests.contract.gateway.kit import Client


def client_of(shop: Client, kind: str, port: int | None = None, **options: Any) -> Any:
    """A client of the package for an account of a test."""
    assert shop.key is not None
    url = f"http://127.0.0.1:{port or shop.port}/{shop.account}"
    key = f"{shop.key.key_id}.{shop.key.secret}"
    if kind == "sync":
        return GatewayClient(url, key, **options)
    return Waiting(AsyncGatewayClient(url, key, **options))


class Waiting:
    """The asynchronous client, each call of which is waited for."""

    def __init__(self, client: AsyncGatewayClient) -> None:
        self._client = client
        self._runner = asyncio.Runner()

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def __repr__(self) -> str:
        return repr(self._client)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if inspect.isasyncgenfunction(method):
            return lambda *given, **options: self._each(method(*given, **options))
        return lambda *given, **options: self._runner.run(method(*given, **options))

    def _each(self, found: Any) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(found)

        try:
            while True:
                yield self._runner.run(following())
        finally:
            self._runner.run(found.aclose())


@dataclass
class Road:
    """A port that leads to the gateway.  ``cuts`` answers are lost: the request arrives."""

    target: int
    cuts: int = 0
    #: An answer is cut after so many bytes; 0: before the first.
    after: int = 0
    passed: int = 0
    _listening: socket.socket = field(
        default_factory=lambda: socket.create_server(("127.0.0.1", 0))
    )

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def run(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                for one, other, is_answer in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._carry, args=(one, other, is_answer)).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _carry(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        size = 0
        with suppress(OSError), source, sink:
            while part := source.recv(65_536):
                size += len(part)
                if is_answer and self.cuts and size > self.after:
                    self.cuts -= 1
                    break
                sink.sendall(part)
            for each in (source, sink):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)


@contextmanager
def road_to(shop: Client) -> Iterator[Road]:
    """A road to the gateway of a test."""
    made = Road(shop.port)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        made.close()
        thread.join()
