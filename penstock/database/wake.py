"""An event that a thread waits for together with what a connection hears."""

from __future__ import annotations

import contextlib
import selectors
import socket

_AT_ONCE = 4096


class Wake:
    """As threading.Event: set by any thread, waited for by one; that one closes it."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)

    def set(self) -> None:
        """Wake who waits now, or whoever waits next."""
        with contextlib.suppress(OSError):  # full: it is set; or closed: nobody waits
            self._write.send(b"x")

    def clear(self) -> None:
        """Wait for the next one."""
        with contextlib.suppress(OSError):
            while len(self._read.recv(_AT_ONCE)) == _AT_ONCE:
                pass

    def wait(self, seconds: float, *, beside: int | None = None) -> bool:
        """Until it is set, or ``beside``, the number of an open file, has something to read."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            if beside is not None:
                selector.register(beside, selectors.EVENT_READ)
            return bool(selector.select(max(0.0, seconds)))

    def close(self) -> None:
        """Give the sockets back."""
        self._read.close()
        self._write.close()
