"""Markers of archive targets: what is not mounted is not lost, and no place has two owners."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ops.archive.archiving import archive_epochs, read_epochs
from ops.archive.epoch_reader import EpochReader
from ops.archive.read_back import spark_reader
from ops.archive.verify import read_copy
from ops.archive.writer import ArchiveWriter
from ops.backfill import missing as backfills
from ops.backfill.missing import audit_files, backfill
from penstock.archive.copies import key_of
from penstock.archive.markers import MARKER, adopt_target, check_marker, marker_path, require_target
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from penstock.errors import ForeignTarget, TargetUnavailable
from tests.archive.logs import Log, archived, bring, only_file, plan_of, states
from tests.archive.test_clean import keep, low_sequences
from tests.kit.cleaning import clean
from tests.kit.proof import proves


def unmount(target: Target) -> Path:
    """The disk goes away: an empty mount point is left, and what lay there waits elsewhere."""
    away = target.root.with_name("away")
    target.root.rename(away)
    target.root.mkdir()
    return away


def mount(target: Target, away: Path) -> None:
    """It is there again."""
    target.root.rmdir()
    away.rename(target.root)


def no_spark() -> None:
    """Nothing starts Spark here."""
    raise AssertionError("Spark was started")


def verbs(log: Log, target: Target) -> list[Callable[[], object]]:
    """All that look at a target or write to it."""
    return [
        lambda: audit_files(log.url, log.topic, target),
        lambda: backfill(None, log.url, log.topic, target),  # type: ignore[arg-type]
        lambda: archive_epochs(None, log.url, log.topic, target),  # type: ignore[arg-type]
        lambda: read_epochs(None, log.url, target, []),  # type: ignore[arg-type]
        lambda: spark_reader(no_spark, log.url)(target, []),  # type: ignore[arg-type]
        lambda: adopt_target(log.url, target),
    ]


@proves("D9, D10 without a disk")
def test_a_target_that_is_not_mounted_loses_and_gets_nothing(log: Log, target: Target) -> None:
    """0 copies forgotten, 0 files written, nothing dropped; mounted again all is as it was.

    Guard: require_target.
    """
    archived(log, target)
    keep(log)
    away = unmount(target)
    for verb in verbs(log, target):
        with pytest.raises(TargetUnavailable, match="is not available"):
            verb()
    run = clean(log.url, log.topic, target)
    assert "is not available" in run.read.unavailable["local"]
    assert low_sequences(log) == [1, 1]
    assert states(log) == ["verified"] * 2
    assert list(target.root.iterdir()) == []
    mount(target, away)
    assert audit_files(log.url, log.topic, target) == []
    assert states(log) == ["verified"] * 2


def test_a_file_in_the_place_of_a_target_is_told_as_such(log: Log, tmp_path: Path) -> None:
    """Guard: LocalStore._make_folder."""
    file = tmp_path / "a-file"
    file.write_text("not a directory")
    for target in (Target("local", str(file)), Target("local", str(file / "below"))):
        with pytest.raises(TargetUnavailable, match=r"a-file is a file, .* name a directory"):
            require_target(log.url, target, write=True)
        with pytest.raises(TargetUnavailable, match="is a file"), target.store.sink("x/y"):
            pass
    assert file.read_text() == "not a directory"


@proves("D9, D10 without a disk", guard="require_target")
def test_without_the_marker_every_copy_is_forgotten(
    log: Log, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: nobody asks for the marker."""
    archived(log, target)
    unmount(target)
    monkeypatch.setattr(backfills, "require_target", lambda *_: "")
    monkeypatch.setattr(backfills, "check_marker", lambda *_: None)
    assert len(audit_files(log.url, log.topic, target)) == 2
    assert states(log) == ["missing"] * 2


def test_a_target_that_goes_away_during_an_audit(
    log: Log, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the marker is looked at again before anything is forgotten."""
    archived(log, target)
    real = ArchiveTable

    def open_late(*arguments: object) -> object:
        unmount(target)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(backfills, "ArchiveTable", open_late)
    with pytest.raises(TargetUnavailable):
        audit_files(log.url, log.topic, target)
    assert states(log) == ["verified"] * 2


@proves("D9, D10 without a disk")
def test_a_task_on_a_machine_without_the_target(log: Log, target: Target) -> None:
    """It writes nothing, and what it cannot read is not damaged."""
    first, _ = archived(log, target)
    file = only_file(target, log, key_of(first))
    plan = plan_of(first)
    installation = require_target(log.url, target)
    unmount(target)
    reading = read_copy(dataclasses.replace(plan, files=((str(file), 0, -1),)), target)
    assert reading.unavailable
    writer = ArchiveWriter(
        target, installation, log.known_as, [plan], EpochReader(log.url, log.topic)
    )
    with pytest.raises(TargetUnavailable):
        writer.write(iter([]))
    with pytest.raises(TargetUnavailable):
        writer.commit([])
    assert list(target.root.iterdir()) == []


@proves("D9, D10 without a disk")
def test_the_marker_says_whose_the_target_is(log: Log, target: Target) -> None:
    """Another installation's place is refused, and so is one place under two names."""
    archived(log, target)
    ours = json.loads(marker_path(target).read_text())
    assert ours["target"] == "local"
    second = Target("second", target.uri)
    with pytest.raises(ForeignTarget, match="'local' of this installation, not 'second'"):
        require_target(log.url, second, write=True)
    marker_path(target).write_text(json.dumps({**ours, "installation": "somebody"}))
    for verb in verbs(log, target):
        with pytest.raises(ForeignTarget, match="'local' of another installation"):
            verb()
    marker_path(target).write_text("{")
    with pytest.raises(TargetUnavailable, match="cannot be read"):
        require_target(log.url, target)
    assert states(log) == ["verified"] * 2


def test_looking_marks_nothing_and_the_first_use_does(log: Log, target: Target) -> None:
    """A target that nobody has written to is just empty."""
    assert audit_files(log.url, log.topic, target) == []
    assert not target.root.exists()
    installation = require_target(log.url, target, write=True)
    assert [path.name for path in target.root.iterdir()] == [MARKER]
    check_marker(target, installation)


@proves("D9, D10 without a disk")
def test_a_target_of_before_markers_is_known_by_what_it_holds(log: Log, target: Target) -> None:
    """An upgrade needs no hand: its tables hold every copy that is recorded there."""
    archived(log, target)
    marker_path(target).unlink()
    assert audit_files(log.url, log.topic, target) == []
    check_marker(target, require_target(log.url, target))
    assert states(log) == ["verified"] * 2


def test_a_target_that_holds_less_than_is_recorded_is_not_known(
    log: Log, target: Target, tmp_path: Path
) -> None:
    """Guard: every recorded copy has to be there. Only a hand takes it, and copies go missing."""
    archived(log, target)
    log.publish_odd()
    (third, *_) = log.seal()
    stale = Target("local", str(tmp_path / "stale"))
    other = Target("other", str(tmp_path / "other"))
    bring(log, other, [third])  # some other table of the topic
    other.root.rename(stale.root)
    marker_path(stale).unlink()
    with pytest.raises(TargetUnavailable):
        adopt_target(log.url, stale)
    assert adopt_target(log.url, stale, even_without_copies=True)
    assert not adopt_target(log.url, stale, even_without_copies=True)
    assert len(audit_files(log.url, log.topic, stale)) == 2
