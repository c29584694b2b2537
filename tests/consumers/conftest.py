"""A topic with two subscriptions, and daemons that do not outlive their test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.subscriptions import stream
from penstock.topics import names
from tests.consumers.process import DAEMON, SOON_DAEMON, Daemon

TOPIC = "shop/orders"
PARTITIONS = 2

Connection = psycopg.Connection[tuple[Any, ...]]
StartDaemon = Callable[..., Daemon]


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[StartDaemon]:
    """Starts daemons: ``daemons(url, *arguments, **environment)``; ``soon=True``: see soon.py."""
    started: list[Daemon] = []
    numbers = itertools.count(1)

    def start(url: str, *arguments: str, soon: bool = False, **environment: str) -> Daemon:
        folder = tmp_path / f"daemon{next(numbers)}"
        program = SOON_DAEMON if soon else DAEMON
        daemon = Daemon(url, folder, arguments, environment, program)
        started.append(daemon)
        return daemon

    yield start
    for daemon in started:
        daemon.kill()


@pytest.fixture
def log(connection: Connection) -> Connection:
    """A connection to a database with a topic that ``billing`` and ``export`` read."""
    make_log(connection)
    return connection


def make_log(connection: Connection) -> None:
    """The topic and its subscriptions."""
    names.create_topic(connection, TOPIC, PARTITIONS, create_namespaces=True)
    for subscription in ("billing", "export"):
        stream.subscribe(connection, subscription, [TOPIC])
