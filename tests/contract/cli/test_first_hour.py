"""What a user meets in the first hour with the command, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from penstock import publish
from tests import command
from tests.command import Result
from tests.contract.databases import ContractDatabase
from tests.kit.log import drain, topic
from tests.kit.proof import proves

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


def _read(run: Run, *options: str) -> list[tuple[int, int, str]]:
    rows = run("fetch", TOPIC, *options, "-o", "json").rows
    return [(row["partition"], row["sequence"], row["payload"]) for row in rows]


@proves("the command shows all")
def test_fetch_reads_every_partition(db: ContractDatabase, run: Run) -> None:
    """Guard: the partitions that it asks for; it read partition 0 only, and said nothing."""
    own = db.connect()
    topic(own, 3, TOPIC)
    for number, partition in enumerate((2, 1, 2, 1, 2)):
        publish(own, TOPIC, str(number).encode(), partition=partition)
        drain(own)
    expected = [(2, 1, "0"), (1, 1, "1"), (2, 2, "2"), (1, 2, "3"), (2, 3, "4")]
    assert _read(run) == expected
    assert _read(run, "--max", "3") == expected[:3]
    assert _read(run, "--from", "2") == expected[2:]
    assert _read(run, "--from", "9") == []
    assert _read(run, "--partition", "1") == [expected[1], expected[3]]
    assert _read(run, "--partition", "0") == []
    assert run("fetch", TOPIC, "--partition", "3").code == 2
    assert run("fetch", "bank/nothing").code == 2
    assert run("fetch", TOPIC, "--from", "0").code == 2
