"""The README's code runs as it is on the page, and runs again."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

import penstock
from ops import cloudevents

README = Path(__file__).resolve().parents[1] / "README.md"
MOST_LINES = 20


def _blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def _run(*blocks: str) -> None:
    """As one program."""
    exec(compile("\n".join(blocks), "README.md", "exec"), {})


def test_the_quickstart_is_short() -> None:
    quickstart = _blocks()[0]
    assert sum(1 for line in quickstart.splitlines() if line.strip()) <= MOST_LINES


def test_the_quickstart_delivers_what_it_published(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: if_not_exists.  At each run: a second one begins where the first has ended."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", database_url)
    for run in ("1", "2"):
        _run(_blocks()[0])
        words = capsys.readouterr().out.split()
        assert words[0] == "shop/orders"
        assert words[2:4] == [run, "Ada"]
        assert words.count("shop/orders") == 1


def test_what_the_quickstart_publishes_is_json(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the content type; without it a relay writes the payload in base64."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", database_url)
    _run(_blocks()[0])
    with penstock.connect(database_url) as connection:
        (event,) = [
            event
            for partition in range(4)
            for event in penstock.fetch(connection, "shop/orders", partition, 1)
        ]
    assert cloudevents.to_structured(event)["data"] == {"order": 7}


def test_the_exactly_once_handler_writes_with_the_position(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is complete after the quickstart, and finds each order once at each run."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", database_url)
    with psycopg.connect(database_url, autocommit=True) as connection:
        for runs in (1, 2):
            _run(*_blocks()[:2])
            found = connection.execute("SELECT customer FROM invoices").fetchall()
            assert found == [("Ada",)] * runs
