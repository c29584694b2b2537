"""Fixtures with logs to archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.archive.targets import Target
from tests.archive.logs import TOPIC, Log
from tests.kit.log import topic as create_topic


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """An empty archive target."""
    return Target("local", str(tmp_path / "archive"))


@pytest.fixture
def log(connection: psycopg.Connection[tuple[Any, ...]], database_url: str) -> Log:
    """A topic of two partitions in a fresh database, without events yet."""
    create_topic(connection, 2, TOPIC)
    return Log(connection, database_url, TOPIC)
