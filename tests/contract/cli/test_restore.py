"""A restored log, compared with what was seen of it outside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ops.archive.commits import EpochCommitter
from penstock.archive.targets import Target
from penstock.topics.names import describe_topic
from tests import command
from tests.archive.test_table import make_plan, write
from tests.command import Result
from tests.contract.databases import ContractDatabase
from tests.kit.stream import STREAM, filled

Run = Callable[..., Result]


@pytest.fixture
def own(db: ContractDatabase) -> Any:
    """A connection to a log of ten events."""
    connection = db.connect()
    filled(connection)
    return connection


@pytest.fixture
def run(
    own: Any,
    db: ContractDatabase,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """The command on that log."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    return partial(command.run, capsys)


def _stopped(found: Result) -> list[tuple[int, int, bool]]:
    rows = json.loads(found.out)
    return [(row["sequence"], row["high_watermark"], row["stopped"]) for row in rows]


def test_what_a_consumer_has_seen_is_compared(run: Run) -> None:
    """Three consumed events are lost, and nothing inside says so: exit code 0, and the reason."""
    before = run("restore", "status")
    assert before.code == 0
    assert "cannot always be told from inside" in before.err
    seen = ("restore", "compare", STREAM, "--by", "billing", "-o", "json")
    whole = run(*seen, "--seen", "0=10")
    assert (whole.code, _stopped(whole)) == (0, [(10, 10, False)])
    lost = run(*seen, "--seen", "0=13")
    assert (lost.code, _stopped(lost)) == (1, [(13, 10, True)])
    assert json.loads(lost.out)[0]["source"] == "billing"
    assert run("restore", "status").code == 1
    assert run("restore", "reconcile", "the dump of Monday", "--yes").code == 0
    unclear = run(*seen, "--seen", "0=13")
    assert unclear.code == 2
    assert "--history" in unclear.err
    after = run(*seen, "--seen", "0=13", "--history", "1")
    assert (after.code, after.rows[0]["present_history"]) == (0, 2)


def test_what_a_target_holds_is_compared(run: Run, own: Any, tmp_path: Path) -> None:
    """The archive of before is ahead of a log that was put back."""
    target = Target("vault", str(tmp_path / "vault"))
    known_as = describe_topic(own, STREAM).known_as
    compare = ("restore", "compare", STREAM, "--target", f"vault={target.root}", "-o", "json")
    for events, code in ((5, 0), (13, 1)):
        plan = make_plan(events=events)
        (written,) = write(target, plan, topic=known_as).epochs
        EpochCommitter(target, known_as, [plan]).commit([(plan, written.file)])
        found = run(*compare)
        assert (found.code, _stopped(found)) == (code, [(events, 10, bool(code))])
        shutil.rmtree(target.root)


def test_what_cannot_be_compared_is_no_good_news(run: Run, tmp_path: Path) -> None:
    """Nothing is given, or a target that is not mounted."""
    for options in ((), ("--target", f"vault={tmp_path / 'nothing'}")):
        found = run("restore", "compare", STREAM, *options)
        assert found.code == 2, options
        assert "compare" in found.err


def test_what_is_no_place_is_refused(run: Run) -> None:
    found = run("restore", "compare", STREAM, "--seen", "0:13")
    assert found.code == 2
    assert "PARTITION=SEQUENCE" in found.err
