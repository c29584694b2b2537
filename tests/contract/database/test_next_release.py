"""What a release does with a schema of the one before and of the next one, and the way there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.database import migrate
from penstock.errors import SchemaTooNew
from tests.contract.databases import ContractDatabase
from tests.kit.log import topic
from tests.kit.next_release import next_release
from tests.kit.proof import proves

SCHEMA = f"penstock_n{os.getpid()}"


@pytest.fixture
def schema(db: ContractDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A schema of this release, beside that of the other tests."""
    monkeypatch.setenv("PENSTOCK_SCHEMA", SCHEMA)
    migrate.migrate(db.url)
    yield SCHEMA
    word, end = ("SCHEMA", " CASCADE") if db.engine == "postgres" else ("DATABASE", "")
    db.run(f"DROP {word} {SCHEMA}{end}")


@proves("an upgrade stops nobody")
@pytest.mark.long_on("mysql", "mariadb")
def test_this_release_and_the_next_one_share_a_schema(
    db: ContractDatabase, schema: str, tmp_path: Path
) -> None:
    """Files as CONTRIBUTING.md says, and the command: refused, migrated, used by both."""
    later = next_release(tmp_path)
    code, said = later.penstock(db.url, "--schema", schema, "status")
    assert (code, "_more is missing. run `penstock migrate`" in said) == (3, True), said
    code, said = later.penstock(db.url, "--schema", schema, "migrate")
    assert code == 0, said
    assert "applied more\napplied functions\n" in said
    own = db.connect()
    migrate.require_usable(own)
    topic(own, 1, "shop/orders")
    penstock.publish(own, "shop/orders", b"1")
    penstock.sequence(own)
    assert [each.payload for each in penstock.fetch(own, "shop/orders", 0, 1)] == [b"1"]
    with pytest.raises(SchemaTooNew, match="upgrade this program"):
        migrate.migrate(db.url)
    code, said = later.penstock(db.url, "--schema", schema, "status")
    assert (code, "up to date" in said) == (0, True), said
