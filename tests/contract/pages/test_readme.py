"""The README's code runs as it is on the page, and runs again."""

from __future__ import annotations

import json

import pytest

import penstock
from ops.sinks import cloudevents
from tests.contract.databases import ContractDatabase
from tests.contract.pages.blocks import blocks_of, run
from tests.kit.proof import proves

README = "README.md"
MOST_LINES = 20


@pytest.fixture
def db(db: ContractDatabase, monkeypatch: pytest.MonkeyPatch) -> ContractDatabase:
    """The database that the environment names."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    return db


def test_the_quickstart_is_short() -> None:
    quickstart = blocks_of(README)[0]
    assert sum(1 for line in quickstart.splitlines() if line.strip()) <= MOST_LINES


@proves("a start changes nothing twice")
def test_the_quickstart_delivers_what_it_published(
    db: ContractDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: if_not_exists.  At each run: a second one begins where the first has ended."""
    for number in ("1", "2"):
        run(README, blocks_of(README)[0])
        words = capsys.readouterr().out.split()
        assert words[0] == "shop/orders"
        assert words[2:4] == [number, "Ada"]
        assert words.count("shop/orders") == 1


def test_what_the_quickstart_publishes_is_json(db: ContractDatabase) -> None:
    """Guard: the content type; without it a relay writes the payload in base64."""
    run(README, blocks_of(README)[0])
    with penstock.connect(db.url) as connection:
        (event,) = [
            event
            for partition in range(4)
            for event in penstock.fetch(connection, "shop/orders", partition, 1)
        ]
    assert json.loads(cloudevents.to_json(event))["data"] == {"order": 7}


@proves("pages run")
def test_the_exactly_once_handler_writes_with_the_position(db: ContractDatabase) -> None:
    """It is complete after the quickstart, and finds each order once at each run."""
    for runs in (1, 2):
        run(README, *blocks_of(README)[:2])
        with penstock.connect(db.url) as connection:
            found = connection.execute("SELECT customer FROM invoices").fetchall()
        assert list(found) == [("Ada",)] * runs
