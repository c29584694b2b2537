"""Bookmarks, and times that only the archive knows, on the command line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ops.policies import file as policy_file
from ops.seal import seal
from penstock import log
from penstock.archive.targets import Target
from penstock.subscriptions import stream
from tests import command
from tests.command import Result
from tests.contract.databases import ContractDatabase
from tests.kit.copies import copy_all, drop
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, more

Run = Callable[..., Result]


@pytest.fixture
def run(
    db: ContractDatabase, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """The command on a database with a topic of two partitions, ten events in each."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    filled(db.connect(), partitions=2)
    return partial(command.run, capsys)


def test_a_bookmark_is_placed_listed_used_and_dropped(db: ContractDatabase, run: Run) -> None:
    place = ("bookmark", "place", STREAM)
    assert [row["position"] for row in run(*place, "end", "-o", "json").rows] == [10, 10]
    assert run(*place, "each", "--at", "0=4", "--at", "1=bookmark:end").code == 0
    rows = run("bookmark", "list", STREAM, "-o", "json").rows
    assert [(row["name"], row["partition"], row["position"]) for row in rows] == [
        ("end", 0, 10),
        ("end", 1, 10),
        ("each", 0, 3),
        ("each", 1, 10),
    ]
    to = ("--to", "bookmark:each")
    counted = run("subscription", "reset", SUBSCRIPTION, *to, "--dry-run")
    assert "7 events would be read" in counted.err
    assert run("subscription", "seek", SUBSCRIPTION, STREAM, *to, "--yes").code == 0
    assert stream.position(db.connect(), SUBSCRIPTION, STREAM) == {0: 3, 1: 10}
    assert run("subscription", "create", "side", "-t", STREAM, "--start", to[1]).code == 0
    fetched = run("fetch", STREAM, "--from-bookmark", "each", "--max", "3", "-o", "json").rows
    assert [(row["partition"], row["sequence"]) for row in fetched] == [(0, 4), (0, 5), (0, 6)]
    window = ("backfill", "request", "copy", STREAM, "--target", "local", "--dry-run")
    assert run(*window, "--from-bookmark", "each", "--to-bookmark", "end").code == 0
    assert run("bookmark", "drop", STREAM, "each").code == 0
    assert run("bookmark", "drop", STREAM, "each").code == 1


def test_wrong_calls_are_told(run: Run) -> None:
    for arguments, words in (
        (("bookmark", "place", STREAM, "x", "--at", "1", "--at", "2"), "more than once"),
        (("bookmark", "place", STREAM, "x", "--at", "0=1"), "starts are given for the partitions"),
        (("bookmark", "place", STREAM, "x", "--at", "bookmark:y"), "has no bookmark"),
        (("fetch", STREAM, "--from-bookmark", "y"), "has no bookmark"),
        (("fetch", STREAM, "--from-bookmark", "y", "--from", "1"), "more than one beginning"),
        (("fetch", STREAM, "--from-time", "then"), "no time with a zone"),
        (("fetch", STREAM, "--from-time", "2026-01-01T00:00:00Z", "--partition", "7"), "no part"),
    ):
        done = run(*arguments)
        assert done.code == 2, arguments
        assert words in done.err, arguments


def test_a_time_is_looked_up_in_the_archive(
    db: ContractDatabase, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the targets of the option, or of the policy file."""
    monkeypatch.setenv(policy_file.VARIABLE, str(tmp_path / "policies.yaml"))
    (tmp_path / "policies.yaml").write_text("targets: {one: archive}\n")
    own = db.connect()
    firsts = [log.fetch(own, STREAM, partition, 1, 1)[0] for partition in (0, 1)]
    since = min(each.sequenced_at for each in firsts).isoformat()
    more(own, partitions=2, start=11)
    stream.reset(own, SUBSCRIPTION, "latest")
    seal(own, STREAM, max_events=7)
    place = Target("one", str(tmp_path / "archive"))
    copy_all(own, STREAM, place)
    drop(own, STREAM, [place])
    for chosen in (("--target", f"one={place.uri}"), ("--target", "one"), ()):
        fetched = run(
            "fetch", STREAM, "--from-time", since, "--max", "40", *chosen, "-o", "json"
        ).rows
        assert len(fetched) == 40
    reset = ("subscription", "reset", SUBSCRIPTION, "--to", since)
    assert "40 events would be read" in run(*reset, "--dry-run").err
    assert run(*reset, "--yes").code == 0
    assert stream.position(own, SUBSCRIPTION, STREAM) == {0: 0, 1: 0}
