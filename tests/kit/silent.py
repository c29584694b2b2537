"""A server that is frozen: its kernel accepts connections, and nobody ever says a word."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

HOST = "127.0.0.1"


@contextmanager
def frozen_server() -> Iterator[str]:
    """Its host and port."""
    with socket.create_server((HOST, 0)) as listening:
        yield f"{HOST}:{listening.getsockname()[1]}"
