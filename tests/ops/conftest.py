"""The ``penstock`` command in this process, on a database with a topic."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from penstock import names
from penstock.cli import main

TOPIC = "bank/accounts"


@dataclass(frozen=True)
class Result:
    """How a call ended."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What ``--output json`` wrote."""
        assert self.code == 0, self.err
        found: list[dict[str, Any]] = json.loads(self.out)
        return found


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

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        # Warnings of a relay that fails are its log, not its answer.
        logging.disable(logging.CRITICAL)
        try:
            code = main.run(arguments)
        finally:
            logging.disable(logging.NOTSET)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run
