"""Subscriptions on the command line: what the command asks before it acts, and what it prints."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from penstock import subscriptions
from penstock.subscriptions import stream
from tests import command
from tests.command import Result
from tests.contract.databases import ContractDatabase
from tests.kit.log import topic
from tests.kit.proof import proves
from tests.kit.stream import more

Run = Callable[..., Result]
TOPIC = "bank/a"
SEEK = ("subscription", "seek", "ledger", TOPIC, "--to", "latest")


@pytest.fixture
def run(
    db: ContractDatabase, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """The command on a database whose subscription "ledger" has three unread events."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    own = db.connect()
    topic(own, 1, TOPIC)
    more(own, 1, 3, name=TOPIC)
    run = partial(command.run, capsys)
    assert run("subscription", "create", "ledger", "-t", TOPIC).code == 0
    return run


def _stands_at(db: ContractDatabase) -> int:
    return stream.position(db.connect(), "ledger", TOPIC)[0]


@proves("the command asks first")
@pytest.mark.parametrize("partition", [(), ("--partition", "0")])
def test_seek_asks_as_reset_does(
    db: ContractDatabase, run: Run, partition: tuple[str, ...]
) -> None:
    """Guard: --yes; without it no position moves."""
    refused = run(*SEEK, *partition)
    assert (refused.code, refused.out) == (2, "")
    assert "--yes" in refused.err
    assert _stands_at(db) == 0
    assert run(*SEEK, *partition, "--yes").code == 0
    assert _stands_at(db) == 3


@proves("the command asks first")
@pytest.mark.parametrize("how", [("--until-idle",), ("--max", "1", "--until-idle")])
def test_consume_says_that_the_subscription_is_paused(run: Run, how: tuple[str, ...]) -> None:
    """Guard: the look at the subscription; nothing comes, and nobody would know why."""
    assert "paused" not in run("consume", "ledger", *how).err
    run("subscription", "pause", "ledger", "--reason", "the ledger is closed")
    silent = run("consume", "ledger", *how)
    assert (silent.code, silent.out) == (0, "")
    for said in ("paused", "the ledger is closed", "penstock subscription resume ledger"):
        assert said in silent.err
    run("subscription", "resume", "ledger")
    assert "paused" not in run("consume", "ledger", *how).err


@proves("the command asks first")
def test_a_second_pause_gives_a_new_reason(db: ContractDatabase, run: Run) -> None:
    """Guard: the reason that is written although it is paused; one without a reason keeps it."""
    own = db.connect()
    run("subscription", "pause", "ledger", "--reason", "night")
    before = subscriptions.describe_subscription(own, "ledger")
    again = run("subscription", "pause", "ledger", "--reason", "the auditors are here")
    assert "was paused already; the reason is now: the auditors are here" in again.err
    after = subscriptions.describe_subscription(own, "ledger")
    assert (after.paused_at, after.paused_reason) == (before.paused_at, "the auditors are here")
    kept = run("subscription", "pause", "ledger")
    assert kept.err == "subscription ledger: was paused already\n"
    assert subscriptions.describe_subscription(own, "ledger") == after


def test_a_dry_run_of_a_reset_says_how_much_would_be_read(db: ContractDatabase, run: Run) -> None:
    """Without --yes, and no position moves."""
    run(*SEEK, "--yes")
    done = run("subscription", "reset", "ledger", "--to", "2", "--dry-run")
    assert done.code == 0
    assert "subscription ledger: 2 events would be read" in done.err + done.out
    assert _stands_at(db) == 3
