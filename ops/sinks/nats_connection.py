"""The connection to NATS: an event loop in one thread, and requests that wait for their answers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import nats
from nats.aio.client import Client

from ops.sinks.base import SinkMisconfigured, SinkUnavailable
from penstock import event_loops

T = TypeVar("T")

VARIABLES = "PENSTOCK_NATS"

#: A subject, headers and payload.
NatsMessage = tuple[str, dict[str, str], bytes]

_SECONDS = 15
_CONNECT_SECONDS = 5
_END_SECONDS = 3
_API = "$JS.API"


class NatsCalls:
    """The calls of one channel, which another thread can end."""

    def __init__(self) -> None:
        self.ended = False
        self._lock = threading.Lock()
        self._waiting: concurrent.futures.Future[Any] | None = None

    def begin(self, waiting: concurrent.futures.Future[Any]) -> None:
        """This is waited for now."""
        with self._lock:
            self._waiting = waiting
            if self.ended:
                waiting.cancel()

    def end(self) -> None:
        """End what is waited for, and all that comes."""
        with self._lock:
            self.ended = True
            if self._waiting is not None:
                self._waiting.cancel()


class NatsConnection:
    """One connection for all channels of a sink. After an error the next call opens a new one."""

    def __init__(self, servers: Sequence[str], options: Mapping[str, Any]) -> None:
        self._servers = servers
        self._options = dict(options)
        self._client: Client | None = None
        self._refused = ""
        self._waiting: set[asyncio.Future[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._is_closed = False
        self._opening: asyncio.Lock | None = None

    def api(
        self,
        call: str,
        request: Mapping[str, Any] | None = None,
        calls: NatsCalls | None = None,
    ) -> dict[str, Any]:
        """A call of JetStream's API.  Its errors are in the answer, under `error`."""
        payload = b"" if request is None else json.dumps(request).encode()
        return self._run(lambda: self._request((f"{_API}.{call}", {}, payload)), calls)

    def send(
        self, messages: Sequence[NatsMessage], calls: NatsCalls | None = None
    ) -> dict[str, Any]:
        """Send messages, and wait for the answer to the last one."""
        return self._run(lambda: self._send(messages), calls)

    def server(self, calls: NatsCalls | None = None) -> tuple[tuple[int, int], str, int]:
        """The version of the server, as numbers and as text, and the largest message it takes."""
        client = self._run(self._connected, calls)
        version = client.connected_server_version
        return (version.major, version.minor), str(version), client.max_payload

    def close(self) -> None:
        """End what is under way, close the connection, and end the thread."""
        with self._starting:
            self._is_closed = True
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._wind_up(), loop)
        self._thread.join(2 * _SECONDS)

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]], calls: NatsCalls | None) -> T:
        """Do something in the thread of the loop.  It never takes longer than its time."""
        with self._starting:  # after a close nothing begins in a loop that ends
            loop = self._running_loop()
            waiting = asyncio.run_coroutine_threadsafe(_in_time(work), loop)
        if calls is not None:
            calls.begin(waiting)
        try:
            return waiting.result(2 * _SECONDS)
        except (TimeoutError, concurrent.futures.TimeoutError) as error:
            if self._refused:
                raise _forbidden(self._refused) from error
            raise SinkUnavailable(f"NATS did not answer within {_SECONDS} s") from error
        except concurrent.futures.CancelledError as error:
            is_ended = self._is_closed or (calls is not None and calls.ended)
            raise SinkUnavailable(
                "the relay has ended the call to NATS"
                if is_ended
                else "the connection to NATS was lost"
            ) from error
        except nats.errors.NoRespondersError as error:
            raise SinkUnavailable(
                "nobody in NATS answers: JetStream is off, or has no such stream",
                hint="start nats-server with JetStream: jetstream { } in its configuration",
            ) from error
        except (nats.errors.Error, OSError, EOFError) as error:
            if "authorization violation" in str(error).lower():
                raise _forbidden("wrong login") from error
            raise SinkUnavailable(f"NATS: {type(error).__name__} ({error})") from error
        finally:
            waiting.cancel()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._is_closed:
            raise SinkUnavailable("the relay has closed its connection to NATS")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._opening = asyncio.Lock()
            self._thread = event_loops.start(self._loop, "penstock-nats")
        return self._loop

    async def _wind_up(self) -> None:
        """End every call, then the connection, then the loop."""
        try:
            await event_loops.end_tasks(_END_SECONDS)
            await self._drop()
            # Python 3.11 loses the end of a wait whose time has just come: it is told again.
            await event_loops.end_tasks(_END_SECONDS)
            await self._drop()
        finally:
            asyncio.get_running_loop().stop()

    async def _connected(self) -> Client:
        assert self._opening is not None
        async with self._opening:
            if self._client is None or not self._client.is_connected:
                await self._drop()
                self._refused = ""
                self._client = await self._open()
            return self._client

    async def _open(self) -> Client:
        problem: Exception = OSError("no server is named")
        for server in self._servers:
            client = Client()
            try:
                # A client that connects again would send later what waits in it.
                await client.connect(
                    server,
                    name="penstock relay",
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=_CONNECT_SECONDS,
                    error_cb=self._on_error,
                    closed_cb=self._on_close,
                    **self._options,
                )
            except (nats.errors.Error, OSError, EOFError) as error:
                problem = error
                await _abandon(client)
            except asyncio.CancelledError:  # in the middle, so its socket is still open
                await _abandon(client)
                raise
            else:
                return client
        raise problem

    async def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            try:
                with suppress(Exception):
                    async with asyncio.timeout(_CONNECT_SECONDS):
                        await client.close()
            finally:  # it may have waited for the end of TLS
                await _abandon(client)

    async def _on_close(self) -> None:
        """The client lets requests wait for their whole time after a connection was lost."""
        for each in self._waiting:
            each.cancel()

    async def _on_error(self, error: Exception) -> None:
        if "permissions violation" in str(error).lower():
            self._refused = str(error)

    async def _request(self, message: NatsMessage) -> dict[str, Any]:
        client = await self._connected()
        subject, headers, payload = message
        answering = asyncio.ensure_future(
            client.request(subject, payload, timeout=_SECONDS, headers=headers or None)
        )
        self._waiting.add(answering)
        try:
            answer = await answering
        finally:
            self._waiting.discard(answering)
        found: dict[str, Any] = json.loads(answer.data)
        return found

    async def _send(self, messages: Sequence[NatsMessage]) -> dict[str, Any]:
        client = await self._connected()
        for subject, headers, payload in messages[:-1]:
            await client.publish(subject, payload, headers=headers)
        return await self._request(messages[-1])


async def _in_time(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    async with asyncio.timeout(_SECONDS):
        return await work()


async def _abandon(client: Client) -> None:
    """Close the socket that the client leaves open when it could not connect, or close in time.

    Its own close would wait for an answer to the end of TLS.
    """
    writer = getattr(client._transport, "_io_writer", None)
    if writer is not None:
        writer.transport.abort()
        await asyncio.sleep(0)  # the socket is closed in the next turn


def _forbidden(said: str) -> SinkMisconfigured:
    return SinkMisconfigured(
        f"NATS refuses the relay ({said})",
        hint=f"set {VARIABLES}_USERNAME and _PASSWORD, or _TOKEN, or _CREDENTIALS_FILE; the login "
        "may publish to the sink's subjects and to $JS.API.STREAM.>, and subscribe to _INBOX.>",
    )
