"""``penstock dead-letter`` and ``penstock inbox`` on every engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import database
from penstock.publishing.publish import publish
from penstock.subscriptions import dead_letters, stream
from tests import command
from tests.command import Result
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count
from tests.kit.log import drain, topic
from tests.kit.stream import STREAM, SUBSCRIPTION, member_with_lease

Run = Callable[..., Result]
PAYLOADS = [b'{"order": 7}', "Straße".encode(), b"\xff\x00", b"x" * 50]


@pytest.fixture
def run(
    db: ContractDatabase, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Run the command on the engine's database."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    return lambda *arguments: command.run(capsys, "dead-letter", *arguments)


def _given_up(db: ContractDatabase) -> None:
    """Four dead letters, of which the first is parked."""
    own = db.connect()
    topic(own, 1, STREAM)
    for number, payload in enumerate(PAYLOADS, 1):
        publish(own, STREAM, payload, key=f"k{number}", headers={"n": number}, type="placed")
    drain(own)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    member, lease = member_with_lease(own, "a")
    for sequence in range(1, 5):
        dead_letters.give_up(
            own, member, lease, sequence, f"no {sequence}", attempts=3, park=sequence == 1
        )


def test_list_and_show(db: ContractDatabase, run: Run) -> None:
    """Every state, filter and form of a payload."""
    _given_up(db)
    rows = run("list", SUBSCRIPTION, "-o", "json").rows
    assert [(row["sequence"], row["state"], row["reason"]) for row in rows] == [
        (4, "dead", "no 4"), (3, "dead", "no 3"), (2, "dead", "no 2"), (1, "parked", "no 1"),
    ]  # fmt: skip
    ids = {row["sequence"]: str(row["id"]) for row in rows}
    page = ("list", SUBSCRIPTION, "--max", "2", "--before", ids[4], "-o", "json")
    assert [row["sequence"] for row in run(*page).rows] == [3, 2]
    (only,) = run("list", SUBSCRIPTION, "--state", "parked", "--key", "k1", "-o", "json").rows
    assert only == rows[3]
    assert "no 1" in run("list", SUBSCRIPTION, "--topic", STREAM, "--type", "placed").out
    shown = [
        run("show", SUBSCRIPTION, ids[1], "--payload", "json", "-o", "json").json,
        run("show", SUBSCRIPTION, ids[2], "-o", "json").json,
        run("show", SUBSCRIPTION, ids[3], "-o", "json").json,
        run("show", SUBSCRIPTION, ids[3], "--payload", "json", "-o", "json").json,
        run("show", SUBSCRIPTION, ids[4], "--limit", "5", "-o", "json").json,
    ]
    assert shown[0]["payload_json"] == {"order": 7}
    assert (shown[0]["headers"], shown[0]["attempts"]) == ({"n": 1}, 3)
    assert shown[1]["payload"] == "Straße"
    assert shown[2]["payload_hex"] == shown[3]["payload_hex"] == "ff00"
    assert (shown[4]["payload"], shown[4]["payload_cut_at"]) == ("xxxxx", 5)
    assert "xxxxx" in run("show", SUBSCRIPTION, ids[4], "--limit", "5").out


def test_redrive_and_drop(db: ContractDatabase, run: Run) -> None:
    """S24: each once more changes nothing."""
    _given_up(db)
    rows = run("list", SUBSCRIPTION, "-o", "json").rows
    newest = str(rows[0]["id"])
    for expected in (1, 0):
        assert run("redrive", SUBSCRIPTION, newest, "-o", "json").json == {
            "subscription": SUBSCRIPTION, "redriven": expected,
        }  # fmt: skip
    assert "1 redriven" in run("redrive", SUBSCRIPTION, "--key", "k1").err
    (first, last) = run("list", SUBSCRIPTION, "--state", "redriven", "-o", "json").rows
    assert (first["sequence"], last["sequence"]) == (4, 1)
    for expected in (1, 0):
        answer = run("drop", SUBSCRIPTION, newest, "--yes", "-o", "json")
        assert answer.json["dropped"] == expected
    assert run("drop", SUBSCRIPTION, "--all", "--yes", "-o", "json").json["dropped"] == 3
    assert (count(db, "dead_letters"), count(db, "dropped_letters")) == (0, 4)


def test_what_is_not_meant_is_refused(db: ContractDatabase, run: Run) -> None:
    """Exit code 2, and nothing is changed."""
    _given_up(db)
    for arguments in (
        ("drop", SUBSCRIPTION, "--all"),
        ("drop", SUBSCRIPTION, "--yes"),
        ("redrive", SUBSCRIPTION),
        ("redrive", SUBSCRIPTION, "1", "--all"),
        ("redrive", "nobody", "--all"),
        ("show", SUBSCRIPTION, "0"),
        ("list", SUBSCRIPTION, "--state", "gone"),
        ("list", SUBSCRIPTION, "--max", "0"),
    ):
        assert run(*arguments).code == 2, arguments
    assert run("list", "nobody", "-o", "json").json == []
    assert (count(db, "dead_letters"), count(db, "dropped_letters")) == (4, 0)


def test_the_inbox_is_made_or_printed(
    db: ContractDatabase, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed is what is made."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    own = db.connect()
    printed = command.run(capsys, "inbox", "print").out
    database.execute(own, printed.rstrip().rstrip(";"))
    assert command.run(capsys, "inbox", "create").code == 0
    assert database.execute(own, "SELECT COUNT(*) FROM penstock_inbox") == [(0,)]
    assert "COLLATE" in command.run(capsys, "inbox", "print", "--dialect", "mysql").out
    assert command.run(capsys, "inbox", "print", "--dialect", "oracle").code == 2
