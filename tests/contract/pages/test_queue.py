"""The Python blocks of docs/reference/queue.md run as they stand there, one after the other."""

from __future__ import annotations

import inspect

import pytest

import penstock
from penstock import queue
from tests.contract.databases import ContractDatabase
from tests.contract.pages.blocks import blocks_of, run, text_of
from tests.kit.log import drain

PAGE = "docs/reference/queue.md"


def test_every_block_runs(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From an empty database: a mail is sent by hand, the next one by the worker."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    first, second = blocks_of(PAGE)
    names = run(PAGE, first)
    assert capsys.readouterr().out.split() == ["ada@example.org", "b'Welcome'"]
    connection = db.connect()
    penstock.publish(connection, "shop/mails", b"Welcome", key="bob@example.org")
    drain(connection)
    run(PAGE, second, **names)
    assert list(connection.execute("SELECT mail FROM sent").fetchall()) == [("bob@example.org",)]
    assert queue.statistics(connection, "mails").size == 0
    run(PAGE, first, second)  # everything is there already


def test_the_arguments_of_reject_are_on_the_page() -> None:
    text = text_of(PAGE)
    given = inspect.signature(queue.reject).parameters
    assert [name for name in ("reason", "delay_seconds") if name not in given] == []
    assert '`reject(…, reason="", delay_seconds=None)`' in text
