"""uvicorn's protocol with the limits that it lacks, all of them before anybody is authenticated.

uvicorn with httptools takes headers of any size, a request without Host, and a request that never
ends.  It stops to read when a second request comes before the first is answered, and does not see
any more that the caller hangs up.
"""

from __future__ import annotations

import asyncio
import re
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

#: Of the first line and all headers of a request.
MAX_HEAD_BYTES = 65_536
#: Of its answer, a caller takes at least so much in `request_seconds`, or is cut off.
LEAST_TAKEN_BYTES = 65_536
_HOST = re.compile(rb"[A-Za-z0-9._-]{1,255}(?::\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::\d{1,5})?")


class _Refused(Exception):
    """Raised inside of the parser, which then stops."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection whose requests have to arrive in time, with few headers and one Host."""

    #: How long a request may take to arrive, and a caller may take too little of its answer.
    request_seconds = 30.0
    max_connections = 10_000

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection: its first request has to come."""
        super().connection_made(transport)
        self._head = 0
        self._is_in_head = False
        self._began = False
        self._refusal = 400
        self._is_last = False
        self._deadline: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._untaken = 0
        self._marked_at = 0.0
        _keep_little(transport)
        if len(self.connections) > self.max_connections:
            transport.close()
            return
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of a connection."""
        self._end_deadline()
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The caller has to take more of its answer first."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """It has."""
        super().resume_writing()
        self._watch()

    def on_response_complete(self) -> None:
        """An answer is written; the caller may not have taken it."""
        super().on_response_complete()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Some bytes: a head that is too long is refused before it is whole."""
        if self._is_last:
            return
        self._began = False
        before = self._head
        super().data_received(data)
        if self.transport.is_closing() or self._is_last:
            return
        cycle: Any = self.cycle
        if self._deadline is None and (cycle is None or cycle.response_complete):
            # Empty lines before a request: they end the wait of uvicorn for the next one.
            self._start_deadline()
        if self._is_in_head:
            self._head = len(data) if self._began else before + len(data)
            if self._head > MAX_HEAD_BYTES:
                self._refuse(431)

    def on_message_begin(self) -> None:
        """A request begins."""
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            # With it, uvicorn would forget the first one, and nobody would be told that its caller
            # has hung up. So the first is answered, then the connection ends, and what comes
            # meanwhile is thrown away: a client sends it again, as RFC 9112 says (9.3.2).
            self._is_last, cycle.keep_alive = True, False
            raise _Refused
        super().on_message_begin()
        self._is_in_head = self._began = True
        self._head = self._fields = 0
        self._start_deadline()

    def on_url(self, url: bytes) -> None:
        """A part of the address."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """The head is whole: it has one Host."""
        self._is_in_head = False
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            raise _Refused
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._end_deadline()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """The answer to what is no request, or to one that comes too early."""
        if not self._is_last:
            self._refuse(self._refusal)

    def _count(self, size: int) -> None:
        self._fields += size
        if self._fields > MAX_HEAD_BYTES:
            self._refusal = 431
            raise _Refused

    def _start_deadline(self) -> None:
        self._end_deadline()
        self._deadline = self.loop.call_later(self.request_seconds, self._is_late)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _is_late(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408)

    def _refuse(self, status: int) -> None:
        """Answer, unless an answer has begun, and close."""
        self._end_deadline()
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            if cycle is not None and not cycle.response_complete:
                # Its handler is told that the caller is gone.
                cycle.disconnected = True
                cycle.message_event.set()
            self.transport.write(
                STATUS_LINE[status] + b"content-length: 0\r\nconnection: close\r\n\r\n"
            )
        self.transport.close()
        self._watch()

    def _watch(self) -> None:
        """Look later whether the caller has taken its answer, or a part of it."""
        self._untaken = self.transport.get_write_buffer_size()
        self._marked_at = self.loop.time()
        if self._untaken and self._look is None:
            self._look = self.loop.call_later(self.request_seconds, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        untaken = self.transport.get_write_buffer_size()
        left = self._marked_at + self.request_seconds - self.loop.time()
        if untaken and left > 0:  # the buffer has been empty, or full, since this look was planned
            self._look = self.loop.call_later(left, self._look_again)
        elif untaken and self._untaken - untaken < LEAST_TAKEN_BYTES:
            # Not closed: that would wait until all that was written is taken.
            self.transport.abort()
        else:
            self._watch()


def _keep_little(transport: asyncio.Transport) -> None:
    """Let the system keep little of what was not sent.

    Else it takes megabytes at a time, and for minutes a slow caller seems to take nothing.
    """
    made = transport.get_extra_info("socket")
    if made is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, LEAST_TAKEN_BYTES)
