"""Legal holds and skips on the command line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from penstock import subscriptions
from penstock.subscriptions import stream
from tests import command
from tests.command import Result
from tests.contract.databases import ContractDatabase
from tests.contract.ops.test_keeping import skipped_stream
from tests.kit.log import topic
from tests.kit.stream import STREAM, SUBSCRIPTION

Run = Callable[..., Result]
TOPIC = "bank/a"


@pytest.fixture
def run(
    db: ContractDatabase, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """The command on a database with a topic."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    topic(db.connect(), 2, TOPIC)
    return partial(command.run, capsys)


def test_a_hold_is_placed_listed_and_released(run: Run) -> None:
    """What is written is what the database has; a second release is told by the exit code."""
    placed = run("hold", "place", TOPIC, "case-17", "--reason", "a claim")
    assert (placed.code, placed.out) == (0, "")
    assert placed.err == f"hold case-17 is on {TOPIC}\n"
    options = ("-p", "1", "--from", "3", "--to", "9", "--reason", "audit")
    assert run("hold", "place", TOPIC, "case-18", *options).code == 0
    assert [
        (row["name"], row["partition"], row["first_sequence"], row["last_sequence"], row["reason"])
        for row in run("hold", "list", TOPIC, "-o", "json").rows
    ] == [("case-17", None, 1, None, "a claim"), ("case-18", 1, 3, 9, "audit")]
    release = ("hold", "release", TOPIC, "case-18", "--reason", "over")
    assert run(*release).code == 0
    again = run(*release)
    assert (again.code, again.err) == (1, f"no hold case-18 is on {TOPIC}\n")
    assert [row["name"] for row in run("hold", "list", "-o", "json").rows] == ["case-17"]
    every = run("hold", "list", "--released", "-o", "json").rows
    assert [row["release_reason"] for row in every] == [None, "over"]


def test_what_cannot_be_held_is_said(run: Run) -> None:
    """Exit code 2, and what to do."""
    refused = run("hold", "place", TOPIC, "case-17", "--from", "3", "--reason", "audit")
    assert (refused.code, refused.out) == (2, "")
    assert "partition" in refused.err
    assert "no topic" in run("hold", "place", "bank/b", "x", "--reason", "audit").err
    assert run("hold", "list", "-o", "json").rows == []


def test_skips_are_shown_until_the_subscription_has_gone_on(db: ContractDatabase, run: Run) -> None:
    """Status and doctor; what the doctor says is what mends it, and the record stays."""
    own = db.connect()
    skipped_stream(db, own)
    (first, second) = run("status", "-o", "json").json["skips"]
    assert (first["first_sequence"], second["last_sequence"]) == (1, 10)
    said = " ".join(run("status").err.split())
    assert "skips:" in said
    assert "So that it misses no more" in said
    (finding,) = [each for each in run("doctor", "-o", "json").json if each["check"] == "skips"]
    program, *words = finding["command"].partition("  #")[0].split()
    assert program == "penstock"
    assert run(*words).code == 0
    assert stream.position(own, SUBSCRIPTION, STREAM) == {0: 10}
    assert run("status", "-o", "json").json["skips"] == []
    assert len(subscriptions.skips(own)) == 2
