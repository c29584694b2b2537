"""``penstock audit``, ``penstock duty``, and the engine of the other commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.kit.log import drain, put
from tests.ops.conftest import TOPIC, Run, run

__all__ = ["run"]

Connection = psycopg.Connection[tuple[Any, ...]]


def test_audit(run: Run, connection: Connection) -> None:
    for number in range(6):
        put(connection, str(number), key=f"k{number}", name=TOPIC)
    drain(connection)
    rows = run("audit", TOPIC, "-o", "json").rows
    assert [row["state"] for row in rows] == ["done"] * 2
    assert sum(row["events"] for row in rows) == 6
    connection.execute("UPDATE penstock.events SET created_at = created_at + interval '1 day'")
    found = run("audit", TOPIC, "-o", "json")
    assert found.code == 1
    assert "before its event was created" in found.out
    assert run("audit", TOPIC, "--to", "99").code not in {0, 1}


def test_duty(
    run: Run, connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONE_URL", database_url)
    put(connection, "1", name=TOPIC)
    rows = run("duty", "sequence", "--database", "one=ONE_URL", "-o", "json").rows
    assert [(row["database"], row["state"], row["events"]) for row in rows] == [("one", "done", 1)]
    found = run("duty", "sweep", "--database", "one=ONE_URL", "--database", "two=NO_URL")
    assert found.code == 1
    assert "NO_URL" in found.out
    refused = run("duty", "sweep", "--database", database_url)
    assert refused.code not in {0, 1}
    assert database_url not in refused.out + refused.err


def test_an_engine_that_does_not_exist_is_refused(run: Run, tmp_path: Path) -> None:
    for command in (
        ["duty", "sweep"],
        ["audit", TOPIC],
        ["clean", TOPIC, "--yes"],
        ["backfill", "run"],
    ):
        found = run(*command, "--engine", "flink")
        assert found.code not in {0, 1}, command
        assert "no engine 'flink'" in found.err
