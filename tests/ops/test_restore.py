"""``penstock restore`` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from ops.health import health
from ops.policies.file import Policies
from penstock.cli.exit_codes import EXIT_NO
from penstock.log.restores import report_position
from tests.kit.log import part
from tests.ops.conftest import TOPIC, Run

Connection = psycopg.Connection[tuple[Any, ...]]


def test_status_says_no_while_something_lies_beyond_the_log(
    run: Run, connection: Connection
) -> None:
    """Exit code 0 when all is well, 1 when a partition is stopped, 0 again after reconcile."""
    assert run("restore", "status").code == 0
    report_position(connection, part(connection, 1, TOPIC), 7, history=1, source="sink")
    found = run("restore", "status", "--output", "json")
    assert found.code == EXIT_NO
    assert '"sequence": 7' in found.out
    assert "penstock restore reconcile" in health(connection, Policies(Path(".")))[0].command
    refused = run("restore", "reconcile", "the volume of Monday")
    assert refused.code != 0
    assert "--yes" in refused.err
    done = run("restore", "reconcile", "the volume of Monday", "--yes")
    assert done.code == 0
    again = run("restore", "status")
    assert again.code == 0
    assert "history 2" in again.out + again.err
    assert "the volume of Monday" in again.out + again.err
