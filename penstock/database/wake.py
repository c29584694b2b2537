"""An event that a thread can wait for together with a connection's socket."""

from __future__ import annotations

import contextlib
import selectors
import socket

_AT_ONCE = 4096


class Wake:
    """Like threading.Event: any thread sets it, one thread waits for it and closes it."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)

    def set(self) -> None:
        """Wake the thread that waits now, or the next one that waits."""
        with contextlib.suppress(OSError):  # full: it is set already; closed: no thread waits
            self._write.send(b"x")

    def clear(self) -> None:
        """Forget that it was set, and wait for the next time."""
        with contextlib.suppress(OSError):
            while len(self._read.recv(_AT_ONCE)) == _AT_ONCE:
                pass

    def wait(self, seconds: float, *, beside: int | None = None) -> bool:
        """Wait until it is set, or until the file with the number ``beside`` can be read."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            if beside is not None:
                selector.register(beside, selectors.EVENT_READ)
            return bool(selector.select(max(0.0, seconds)))

    def close(self) -> None:
        """Close the sockets."""
        self._read.close()
        self._write.close()
