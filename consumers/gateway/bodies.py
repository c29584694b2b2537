"""Bodies of requests: each has a limit, and all of them together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from consumers.gateway.answers import Refused
from consumers.gateway.calls import Receive


class Bodies:
    """Reads bodies; what it has read counts until its request has ended."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._present = 0

    @asynccontextmanager
    async def read(
        self, receive: Receive, headers: Mapping[str, str], most: int
    ) -> AsyncIterator[bytes]:
        """The body of a request.  Refused: 413 when it is too long, 503 when all are too long."""
        require_length(headers, most)
        parts: list[bytes] = []
        size, is_whole = 0, False
        try:
            while not is_whole:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "the request ended early")
                part = message.get("body", b"")
                parts.append(part)
                size += len(part)
                self._present += len(part)
                if size > most:
                    raise _too_long(most)
                if self._present > self._most:
                    close = {"Retry-After": "1", "Connection": "close"}
                    raise Refused(503, "too many bodies at a time", close)
                is_whole = not message.get("more_body")
            yield b"".join(parts)
        finally:
            self._present -= size


def require_length(headers: Mapping[str, str], most: int) -> None:
    """Refused when a request says that its body is too long."""
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise _too_long(most)


def _too_long(most: int) -> Refused:
    return Refused(413, f"the body has more than {most} bytes", {"Connection": "close"})
