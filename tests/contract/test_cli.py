"""The ``penstock`` command on every engine: each group of verbs once, on a real database."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests import command
from tests.command import Result
from tests.contract.databases import ContractDatabase

Run = Callable[..., Result]


@pytest.fixture
def run(
    db: ContractDatabase, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Run the command on the engine's database; it has to succeed."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)

    def checked(*arguments: str) -> Result:
        result = command.run(capsys, *arguments)
        assert result.code == 0, (arguments, result.err)
        return result

    return checked


def test_from_a_namespace_to_a_subscription(run: Run) -> None:
    """Guard: own_transaction; a driver's own ``transaction()`` is psycopg's only."""
    run("namespace", "create", "bank/north", "--parents")
    run("namespace", "rename", "bank/north", "south")
    run("topic", "create", "bank/south/payments", "-n", "2")
    run("topic", "resize", "bank/south/payments", "3")
    run("topic", "rename", "bank/south/payments", "transfers")
    run("topic", "move", "bank/south/transfers", "bank")
    run("namespace", "create", "old")
    run("namespace", "move", "bank/south", "old")
    assert [each["path"] for each in run("namespace", "list", "-o", "json").rows] == [
        "bank", "old", "old/south",
    ]  # fmt: skip
    run("subscription", "create", "ledger", "-t", "bank/transfers")
    for key in ("a", "b", "c"):
        run("publish", "bank/transfers", "hello", "--key", key, "--header", "n=1")
    assert run("sequence", "-o", "json").rows
    described = run("topic", "describe", "bank/transfers", "-o", "json").json
    assert sum(each["high_watermark"] for each in described["partitions"]) == 3
    found = [
        row
        for partition in range(3)
        for row in run("fetch", "bank/transfers", "--partition", str(partition), "-o", "json").rows
    ]
    assert sorted(row["key"] for row in found) == ["a", "b", "c"]
    run("subscription", "seek", "ledger", "bank/transfers", "--to", "latest")
    listed = run("subscription", "list", "ledger", "-o", "json").rows
    assert {each["lag_events"] for each in listed} == {0}
    run("subscription", "delete", "ledger", "--yes")
    run("topic", "delete", "bank/transfers", "--yes")
    run("namespace", "delete", "old")
    assert [each["path"] for each in run("namespace", "list", "-o", "json").rows] == ["bank"]


def test_what_an_operator_asks(run: Run) -> None:
    run("namespace", "create", "bank")
    run("topic", "create", "bank/payments")
    run("clean", "bank/payments", "--yes")
    run("status")
    assert run("restore", "status", "-o", "json").json is not None
    assert run("migrate", "--check").code == 0


def test_what_is_refused_changes_nothing(
    db: ContractDatabase, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: the transaction of a command is rolled back."""
    run("namespace", "create", "bank")
    refused = partial(command.run, capsys)
    assert refused("namespace", "create", "bank").code == 2
    assert refused("topic", "create", "nowhere/payments").code == 2
    assert "nowhere" in refused("topic", "create", "nowhere/payments").err
    assert [each["path"] for each in run("namespace", "list", "-o", "json").rows] == ["bank"]
