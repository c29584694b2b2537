"""One HTTP/1.1 connection for asyncio: what a gateway sends, and nothing more."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

from penstock.http.address import GatewayAddress
from penstock.http.verbs import AnswerLost, HttpReply

#: Of one line of an answer: a server-sent event is one line.
_LONGEST_LINE = 64 * 1024 * 1024
_MOST_HEADERS = 100


class AsyncConnection:
    """A connection to the gateway; one call at a time."""

    def __init__(self, address: GatewayAddress, tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._tls = tls
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def is_open(self) -> bool:
        """Whether it can be used again."""
        reader, writer = self._reader, self._writer
        if reader is None or writer is None or writer.is_closing():
            return False
        return not reader.at_eof() and reader.exception() is None

    def close(self) -> None:
        """Close it at once."""
        if self._writer is not None:
            with suppress(OSError, RuntimeError):
                self._writer.close()
        self._reader = self._writer = None

    async def call(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], seconds: float
    ) -> HttpReply:
        """Send a request and read the whole answer."""
        head = await self.begin(method, path, body, headers, seconds)
        try:
            async with asyncio.timeout(seconds):
                return HttpReply(head.status, head.headers, await self.rest(head))
        except (TimeoutError, OSError, EOFError, ValueError) as error:
            raise self._cut(error) from None

    async def begin(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], seconds: float
    ) -> HttpReply:
        """Send a request and read the head of its answer."""
        reader, writer = await self._opened(seconds)
        told = {**headers, "Content-Length": str(len(body))}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {told[name]}" for name in told)]
        try:
            async with asyncio.timeout(seconds):
                writer.write("\r\n".join([*lines, "", ""]).encode() + body)
                await writer.drain()
                return await _head(reader)
        except (TimeoutError, OSError, EOFError, ValueError) as error:
            raise self._cut(error) from None

    async def rest(self, head: HttpReply) -> bytes:
        """The body of an answer."""
        assert self._reader is not None
        if head.status == 204:  # noqa: PLR2004 - it has none
            return b""
        if "content-length" in head.headers:
            return await self._reader.readexactly(int(head.headers["content-length"]))
        return b"".join([part async for part in self._chunks()])

    async def lines(self, seconds: float) -> AsyncIterator[bytes]:
        """The lines of an answer without an end, each within so many seconds."""
        chunks = self._chunks()
        held = b""
        while True:
            try:
                async with asyncio.timeout(seconds):
                    part = await anext(chunks, b"")
            except (TimeoutError, OSError, EOFError, ValueError) as error:
                raise self._cut(error) from None
            if not part:
                return
            *whole, held = (held + part).split(b"\n")
            for line in whole:
                yield line

    async def _chunks(self) -> AsyncIterator[bytes]:
        assert self._reader is not None
        while size := int((await self._reader.readline()).split(b";")[0], 16):
            yield await self._reader.readexactly(size)
            await self._reader.readline()
        await self._reader.readline()

    async def _opened(self, seconds: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None or self._writer is None:
            host, port = self._address.host, self._address.port
            try:
                async with asyncio.timeout(seconds):
                    self._reader, self._writer = await asyncio.open_connection(
                        host, port, ssl=self._tls, limit=_LONGEST_LINE
                    )
            except OSError as error:
                # Only the kind of the error: its text may name what it likes.
                raise AnswerLost(
                    f"cannot be reached ({type(error).__name__})", was_sent=False
                ) from None
        return self._reader, self._writer

    def _cut(self, error: Exception) -> AnswerLost:
        self.close()
        return AnswerLost(f"has cut the call ({type(error).__name__})", was_sent=True)


async def _head(reader: asyncio.StreamReader) -> HttpReply:
    line = await reader.readline()
    version, _, rest = line.partition(b" ")
    if not version.startswith(b"HTTP/1."):
        raise EOFError
    headers: dict[str, str] = {}
    for _ in range(_MOST_HEADERS):
        line = (await reader.readline()).rstrip(b"\r\n")
        if not line:
            return HttpReply(int(rest[:3]), headers)
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    raise ValueError("too many headers")
