"""The ``penstock`` command in this process, on a database with a topic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest

from penstock.topics import names
from tests import command
from tests.command import Result

TOPIC = "bank/accounts"


Run = Callable[..., Result]


@pytest.fixture
def run(
    database_url: str,
    connection: psycopg.Connection[tuple[Any, ...]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """Runs ``penstock`` with these arguments; ``bank/accounts`` has two partitions."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", database_url)
    names.create_topic(connection, TOPIC, 2, create_namespaces=True)

    return partial(command.run, capsys)
