"""What somebody meets who tries the command for the first time, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests import command
from tests.command import Result
from tests.contract.databases import ContractDatabase

Run = Callable[..., Result]
TOPIC = "bank/a"


@pytest.fixture
def run(
    db: ContractDatabase, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """The command on the engine's database."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    return partial(command.run, capsys)


def test_a_topic_is_created_again(run: Run) -> None:
    """Guard: --if-not-exists; the actual number of partitions is told."""
    create = ("topic", "create", TOPIC, "-n", "2", "-p", "--if-not-exists")
    for _ in range(2):
        again = run(*create)
        assert (again.code, again.err) == (0, f"topic {TOPIC} is there with 2 partitions\n")
    run("topic", "resize", TOPIC, "3")
    assert run(*create, "-o", "json").json["partitions"] == 3
    refused = run("topic", "create", TOPIC, "-n", "5", "--if-not-exists")
    assert refused.code == 2
    assert "3 partitions" in refused.err
    assert run("topic", "create", TOPIC).code == 2
