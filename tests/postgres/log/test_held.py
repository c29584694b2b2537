"""tests.contract.log.test_held would notice an update of a row of the hot path."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.databases import PostgresDatabase
from tests.contract.log.test_held import BEATS, work_under_a_snapshot
from tests.kit.proof import proves


@pytest.fixture
def db(database_url: str) -> Iterator[PostgresDatabase]:
    """A fresh database of PostgreSQL."""
    postgres = PostgresDatabase("postgres", database_url)
    yield postgres
    postgres.close()


@proves("R6", guard="no update in the hot path")
def test_a_row_that_every_pass_updates_is_noticed(db: PostgresDatabase) -> None:
    """Mutant: the sequencer notes in a row of its own that it was there."""
    lock = "PERFORM FROM sequencer FOR UPDATE SKIP LOCKED;"
    update = "UPDATE sequencer SET singleton = true;"
    db.without_guard("sequence", f"{lock}\n", f"{lock} {update}\n")
    assert sum(dead for _, dead in work_under_a_snapshot(db, 0)) >= BEATS
