"""The ``penstock`` command, run in the test's own process, because each start takes a second."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.cli import main


@dataclass(frozen=True)
class Result:
    """How a call ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What ``--output json`` wrote."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The same of a call that has to succeed."""
        assert self.code == 0, self.err
        found: list[dict[str, Any]] = self.json
        return found


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Result:
    """Run ``penstock`` with these arguments."""
    capsys.readouterr()
    # Warnings of a relay that fails are its log, not its answer.
    logging.disable(logging.CRITICAL)
    try:
        code = main.run(arguments)
    finally:
        logging.disable(logging.NOTSET)
    captured = capsys.readouterr()
    return Result(code, captured.out, captured.err)
