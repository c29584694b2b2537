"""The README's code runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
MOST_LINES = 20


def _blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_quickstart_is_short() -> None:
    quickstart = _blocks()[0]
    assert sum(1 for line in quickstart.splitlines() if line.strip()) <= MOST_LINES


def test_the_quickstart_delivers_what_it_published(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", database_url)
    names: dict[str, object] = {}
    exec(compile(_blocks()[0], "README.md", "exec"), names)
    words = capsys.readouterr().out.split()
    assert words[0] == "shop/orders"
    assert words[2:4] == ["1", "Ada"]


def test_the_exactly_once_handler_writes_with_the_position(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", database_url)
    quickstart, handler = _blocks()[:2]
    before_consumer, _, _ = quickstart.partition("def bill")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE invoices (customer text NOT NULL)")
        names: dict[str, object] = {}
        consume = 'penstock.Consumer(url, "billing", batch_handler=bill).run_until_idle()'
        exec(compile(f"{before_consumer}\n{handler}\n{consume}", "README.md", "exec"), names)
        assert connection.execute("SELECT customer FROM invoices").fetchall() == [("Ada",)]
