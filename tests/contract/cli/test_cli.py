"""The ``penstock`` command on every engine: each group of verbs once, on a real database."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest

from penstock.cli.consume import Printer
from penstock.leases.database_keeper import LeaseKeeper
from penstock.subscriptions import stream
from tests import command
from tests.command import Result
from tests.contract.databases import ContractDatabase
from tests.kit.log import topic, wait_until
from tests.kit.stream import more

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
    run("subscription", "seek", "ledger", "bank/transfers", "--to", "latest", "--yes")
    cursors = run("subscription", "describe", "ledger", "-o", "json").json["cursors"]
    assert {each["lag_events"] for each in cursors} == {0}
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


def _events(db: ContractDatabase, run: Run, *topics: str) -> None:
    """Topics with three events each in two partitions, and the subscription "ledger" to them."""
    own = db.connect()
    for each in topics:
        topic(own, 2, each)
        more(own, 2, 3, name=each)
        run("subscription", "create", "ledger", "-t", each)


def _told(result: Result) -> list[tuple[str, int, int]]:
    lines = [json.loads(line) for line in result.out.splitlines()]
    return [(each["topic"], each["partition"], each["sequence"]) for each in lines]


def test_a_subscription_is_described_moved_and_paused(db: ContractDatabase, run: Run) -> None:
    _events(db, run, "bank/a", "bank/b")
    (listed,) = run("subscription", "list", "-o", "json").rows
    assert (listed["name"], listed["topics"]) == ("ledger", ["bank/a", "bank/b"])
    assert "ledger" in run("subscription", "list").out
    moved = run("subscription", "reset", "ledger", "--to", "latest", "--yes").err
    assert "bank/b partition 1: reads on after 3" in moved
    run("subscription", "seek", "ledger", "bank/a", "--to", "2", "--yes")
    run("subscription", "seek", "ledger", "bank/a", "--to", "2000-01-01T00:00:00Z",
        "--partition", "1", "--yes")  # fmt: skip
    found = run("subscription", "describe", "ledger", "-o", "json").json
    assert [each["position"] for each in found["cursors"]] == [1, 0, 3, 3]
    assert "max consumers: 1024" in run("subscription", "describe", "ledger").err
    assert "paused" in run("subscription", "pause", "ledger", "--reason", "night").err
    assert "already" in run("subscription", "pause", "ledger").err
    assert run("subscription", "list", "-o", "json").rows[0]["paused_reason"] == "night"
    assert run("consume", "ledger", "--until-idle").out == ""
    assert "resumed" in run("subscription", "resume", "ledger").err
    assert "was not" in run("subscription", "resume", "ledger").err


def test_what_is_not_committed_is_written_once(
    db: ContractDatabase, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: _as_read.  A check-in brings the position that is stored."""
    _events(db, run, "bank/a")
    capsys.readouterr()
    printer = Printer(
        "ledger", None, consumer_id=None, as_json=False, commits=False, max_events=None
    )
    with printer.keeper, printer.open() as connection:
        wait_until(lambda: printer.turn(connection) == 0 and printer.stats.events, "all is read")
        written = capsys.readouterr().out
        assert len(written.splitlines()) == printer.stats.events
        keeper = printer.keeper
        assert isinstance(keeper, LeaseKeeper)
        keeper.check_in()
        assert printer.turn(connection) == 0
        assert capsys.readouterr().out == ""


def test_consume_writes_and_commits_only_when_told(db: ContractDatabase, run: Run) -> None:
    """Guard: --commit; without it the same events come again."""
    _events(db, run, "bank/a", "bank/b")
    whole = run("consume", "ledger", "--format", "json", "--until-idle")
    assert len(_told(whole)) == 12
    assert "nothing was committed" in whole.err
    first = run("consume", "ledger", "bank/b", "--commit", "--max", "4", "--format", "json")
    assert {each[0] for each in _told(first)} == {"bank/b"}
    assert len(_told(first)) == 4
    rest = run("consume", "ledger", "--commit", "--until-idle", "--format", "json")
    assert sorted(_told(first) + _told(rest)) == sorted(_told(whole))
    assert run("consume", "ledger", "--until-idle").out == ""
    consumers = run("status", "ledger", "-o", "json").json["consumers"]
    assert consumers == []  # each has left


def test_status_shows_who_works_and_what_went_wrong(db: ContractDatabase, run: Run) -> None:
    _events(db, run, "bank/a")
    own = db.connect()
    member = stream.join(own, "ledger", "teller", 2, topics=["bank/a"])
    stream.check_in(own, member)
    stream.report_error(own, member, "the ledger did not balance")
    found = run("status", "ledger", "-o", "json").json
    (teller,) = found["consumers"]
    assert (teller["consumer"], teller["weight"], teller["leases"]) == ("teller", 2, 2)
    assert (teller["topics"], teller["live"]) == (["bank/a"], True)
    assert teller["last_error"] == "the ledger did not balance"
    assert teller["heartbeat_at"] < teller["deadline"]
    assert {each["holder"] for each in found["subscriptions"]} == {"teller"}
    assert {each["lag_events"] for each in found["subscriptions"]} == {3}
    (figures,) = found["statistics"]
    assert (figures["active_partitions"], figures["active_consumers"]) == (2, 1)
    assert (figures["moves"], figures["take_overs"]) == (0, 0)
    shown = run("status")
    assert "did not balance" in shown.out
    assert "statistics:" in shown.err


#: Each is refused in one line.
WRONG = (
    ("consume", "nobody"),
    ("consume", "ledger", "bank/zzz"),
    ("consume", "ledger", "bank"),
    ("status", "nobody"),
    ("subscription", "describe", "nobody"),
    ("subscription", "pause", "nobody"),
    ("subscription", "reset", "ledger", "--to", "latest"),
    ("subscription", "reset", "ledger", "--to", "yesterday", "--yes"),
)


def test_a_wrong_call_is_one_line(
    db: ContractDatabase, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    _events(db, run, "bank/a")
    for arguments in WRONG:
        refused = command.run(capsys, *arguments)
        assert (refused.code, refused.out, len(refused.err.splitlines())) == (2, "", 1), arguments
