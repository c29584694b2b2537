"""One Spark for all tests of this folder, and logs to archive."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from ops.targets import Target
from tests.archive.logs import TOPIC, Log, create_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(java_home: Path) -> Iterator[SparkSession]:
    """A local Spark session, started once."""
    from ops.spark import local_session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        session = local_session("penstock tests")
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """An empty archive target."""
    return Target("local", str(tmp_path / "archive"))


@pytest.fixture
def log(connection: psycopg.Connection[tuple[Any, ...]], database_url: str) -> Log:
    """A topic of two partitions in a fresh database, without events yet."""
    create_topic(connection, TOPIC, partitions=2)
    return Log(connection, database_url, TOPIC)
