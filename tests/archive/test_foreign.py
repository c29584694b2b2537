"""Another engine runs OPTIMIZE and VACUUM on a table: nothing is lost, and no row comes twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from ops.archive import erasing, foreign, foreign_rows, verify
from ops.archive.auditing import audit_copies
from ops.archive.copying import recorded_plans
from ops.archive.read_back import plain_reader
from ops.archive.rollup import rollup
from ops.archive.verify import read_copy
from ops.backfill.missing import audit_files
from ops.erase import What, erase
from ops.seal import copies_of, log_epochs, missing_copies
from penstock import archive
from penstock.archive.format import DAYS, FOLDERS
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from penstock.errors import CopyDamaged, EpochMissing
from tests.archive.folders import bring_folders
from tests.archive.logs import Log, bring, states
from tests.archive.test_clean import keep
from tests.archive.test_rollup import check_all, day_files, yesterday
from tests.kit.cleaning import clean
from tests.kit.proof import proves


def _delta(log: Log, target: Target, layout: int = DAYS) -> DeltaTable:
    found = ArchiveTable(target, log.known_as).delta(layout)
    assert found is not None
    return found


def _vacuum(log: Log, target: Target, layout: int = DAYS) -> None:
    """As the other engine does it, with the shortest time that there is."""
    _delta(log, target, layout).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True
    )


def _optimize(log: Log, target: Target) -> None:
    _delta(log, target).optimize.compact()


def _order_by_key(log: Log, target: Target) -> None:
    """Rows of all log epochs mixed."""
    _delta(log, target).optimize.z_order(["event_id"])


@pytest.fixture
def optimized(log: Log, target: Target) -> Log:
    """Six log epochs of yesterday, in one file that Penstock has not written."""
    log.publish_odd()
    log.publish_many(24)
    log.seal(max_events=6)
    yesterday(log)
    bring(log, target, log_epochs(log.connection, log.topic))
    _optimize(log, target)
    assert len(day_files(log, target)) == 1
    return log


def _audit(log: Log, target: Target) -> None:
    assert audit_copies(plain_reader(log.url), log.url, log.topic, target).forgotten == ()


def _files(log: Log, target: Target) -> None:
    assert audit_files(log.url, log.topic, target) == []


def _rollup(log: Log, target: Target) -> None:
    rollup(log.url, log.topic, target)


@proves("D10 under other engines")
@pytest.mark.parametrize("verb", [_audit, _files, _rollup])
def test_what_was_optimized_is_the_archive_still(optimized: Log, target: Target, verb: Any) -> None:
    """Read by its columns, and compared with the seals; VACUUM takes nothing then."""
    verb(optimized, target)
    _vacuum(optimized, target)
    check_all(optimized, target)


@proves("D10 under other engines")
def test_rows_in_any_order_are_found(log: Log, target: Target) -> None:
    log.publish_odd()
    log.publish_many(24)
    log.seal(max_events=6)
    yesterday(log)
    bring(log, target, log_epochs(log.connection, log.topic))
    _order_by_key(log, target)
    _files(log, target)
    _vacuum(log, target)
    check_all(log, target)


def _whole(log: Log, target: Target) -> int:
    """How many events a reader gets, from the beginning on."""
    found = 0
    for partition in range(2):
        with archive.read(log.url, log.topic, partition, targets=[target]) as reader:
            found += sum(1 for _ in reader.events())
    return found


def _low(log: Log) -> int:
    return int(log.one("SELECT min(low_sequence) FROM penstock.partitions"))


@proves("D10 under other engines")
def test_clean_drops_only_what_the_delta_log_names(optimized: Log, target: Target) -> None:
    """The files that it reads are there after a VACUUM.  Guard: it reads what the log names."""
    events = len(optimized.rows())
    keep(optimized)
    for _ in range(2):  # a copy that has moved during a run counts for the next one
        clean(optimized.url, optimized.topic, target)
    assert _low(optimized) > 1
    _vacuum(optimized, target)
    assert _whole(optimized, target) == events


@proves("D10 under other engines", guard="the Delta log")
def test_without_the_delta_log_clean_drops_what_vacuum_removes(
    log: Log, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the file that the manifest names counts, whatever the Delta log says."""
    log.publish_odd()
    log.seal()
    bring(log, target, log_epochs(log.connection, log.topic))
    before = ArchiveTable(target, log.known_as).day_files()
    _optimize(log, target)
    with monkeypatch.context() as mutant:
        mutant.setattr(ArchiveTable, "day_files", lambda _: before)
        keep(log)
        clean(log.url, log.topic, target)
    assert _low(log) > 1
    _vacuum(log, target)
    with pytest.raises(EpochMissing):
        _whole(log, target)


@proves("D10 under other engines")
def test_what_was_dropped_before_is_found_again_after_a_vacuum(log: Log, target: Target) -> None:
    """The manifest names files that are gone. A look for lost files finds the rows elsewhere."""
    log.publish_odd()
    log.publish_many(24)
    log.seal(max_events=6)
    events = len(log.rows())
    bring(log, target, log_epochs(log.connection, log.topic))
    keep(log)
    clean(log.url, log.topic, target)
    assert _low(log) > 1
    _optimize(log, target)
    _vacuum(log, target)
    with pytest.raises(EpochMissing, match="penstock backfill"):
        _whole(log, target)
    assert audit_files(log.url, log.topic, target) == []
    assert _whole(log, target) == events
    assert set(states(log)) == {"verified"}


@proves("D10 under other engines")
def test_a_foreign_file_that_is_not_what_was_sealed_stays_and_stops_all(
    log: Log, target: Target
) -> None:
    """Nothing of it is thrown away, and nothing is dropped on its word."""
    log.publish_many(12)
    log.seal()
    yesterday(log)
    bring(log, target, log_epochs(log.connection, log.topic))
    delta = _delta(log, target)
    changed = delta.to_pyarrow_table()
    types = pa.array(["changed"] * changed.num_rows)
    changed = changed.set_column(changed.schema.get_field_index("type"), "type", types)
    write_deltalake(delta, changed, mode="overwrite")
    before = day_files(log, target)
    keep(log)
    for verb in (_audit, _files, _rollup):
        with pytest.raises(CopyDamaged, match="was written by another program"):
            verb(log, target)
    assert day_files(log, target) == before
    assert set(states(log)) == {"verified"}


@pytest.fixture
def folders(log: Log, target: Target) -> Log:
    """Log epochs of layout 1, which another program has written again."""
    log.publish_odd()
    log.seal()
    bring_folders(log, target, log_epochs(log.connection, log.topic))
    _delta(log, target, FOLDERS).optimize.z_order(["event_id"])
    assert all(map(foreign_rows.is_foreign, ArchiveTable(target, log.known_as).paths(FOLDERS)))
    return log


@proves("D10 under other engines")
def test_folders_that_another_program_has_written_again_are_read(
    folders: Log, target: Target
) -> None:
    """What clean drops, VACUUM does not remove."""
    events = len(folders.rows())
    keep(folders)
    clean(folders.url, folders.topic, target)
    assert _low(folders) > 1
    _vacuum(folders, target, FOLDERS)
    assert _whole(folders, target) == events
    assert audit_files(folders.url, folders.topic, target) == []
    _audit(folders, target)
    assert set(states(folders)) == {"verified"}


@proves("D10 under other engines", guard="the file's own word")
def test_without_a_file_of_ours_clean_drops_what_vacuum_removes(
    folders: Log, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutants: no file of layout 1 is replaced, and its own word is not asked for either."""
    events = len(folders.rows())
    for plan in recorded_plans(
        folders.url, target, log_epochs(folders.connection, folders.topic)
    ).values():
        assert "another program has written it" in read_copy(plan, target).damage
    keep(folders)
    with monkeypatch.context() as mutant:
        mutant.setattr(foreign, "adopt_folders", lambda *_: [])
        mutant.setattr(verify, "_written_as", lambda plan, _: [plan.checksum])
        clean(folders.url, folders.topic, target)
    assert _low(folders) > 1
    _vacuum(folders, target, FOLDERS)
    with pytest.raises(EpochMissing):
        _whole(folders, target)
    audit_files(folders.url, folders.topic, target)
    assert _whole(folders, target) == events


def _break(target: Target, log: Log, layout: int) -> list[Path]:
    """Each foreign file of a layout, cut off."""
    table = ArchiveTable(target, log.known_as)
    found = [table.folder(layout) / path for path in table.paths(layout)]
    for path in found:
        path.write_bytes(path.read_bytes()[:-100])
    return found


@proves("D10 under other engines")
@pytest.mark.parametrize(
    ("layout", "verb"),
    [
        (FOLDERS, _files),
        pytest.param(FOLDERS, _audit, marks=pytest.mark.long),
        (DAYS, _rollup),
        pytest.param(DAYS, _audit, marks=pytest.mark.long),
    ],
)
def test_a_damaged_foreign_file_is_made_again_from_another_target(
    log: Log, target: Target, tmp_path: Path, layout: int, verb: Any
) -> None:
    """Its copies are forgotten and the verb goes on, though the database has dropped the events."""
    second = Target("second", str(tmp_path / "second"))
    log.publish_odd()
    log.seal(max_events=3)
    yesterday(log)
    epochs = log_epochs(log.connection, log.topic)
    (bring_folders if layout == FOLDERS else bring)(log, target, epochs)
    bring(log, second, epochs)
    keep(log)
    for _ in range(2):
        clean(log.url, log.topic, second, target)
    assert _low(log) > 1
    _delta(log, target, layout).optimize.z_order(["event_id"])
    _vacuum(log, target, layout)
    _break(target, log, layout)
    if verb is not _audit:  # whatever comes first
        verb(log, target)
    else:
        audit_files(log.url, log.topic, target)
        verb(log, target)
    lost = {each.target for each in copies_of(log.connection, log.topic) if each.state == "missing"}
    assert lost == {"local"}
    assert ArchiveTable(target, log.known_as).committed() == {}
    assert len(missing_copies(log.connection, log.topic, "local")) == len(epochs)


@proves("D10 under other engines", guard="that it can be made again")
def test_a_damaged_foreign_file_without_another_copy_stays(
    optimized: Log, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: it is taken out of the table only when its log epochs can be made again."""
    keep(optimized)
    for _ in range(2):
        clean(optimized.url, optimized.topic, target)
    _optimize(optimized, target)
    _order_by_key(optimized, target)
    (broken,) = _break(target, optimized, DAYS)
    with pytest.raises(CopyDamaged, match="was written by another program"):
        _files(optimized, target)
    assert day_files(optimized, target) == [broken]
    assert set(states(optimized)) == {"verified"}
    monkeypatch.setattr(foreign, "require_others", lambda *_: None)  # the mutant
    audit_files(optimized.url, optimized.topic, target)
    assert day_files(optimized, target) == []


@proves("D10 under other engines")
def test_rows_that_another_program_has_deleted_are_a_clear_error(log: Log, target: Target) -> None:
    log.publish_many(12)
    log.seal()
    yesterday(log)
    bring(log, target, log_epochs(log.connection, log.topic))
    _delta(log, target).delete("sequence = 3")
    for verb in (_audit, _files, _rollup):
        with pytest.raises(CopyDamaged, match="rows, not the 6 with the sequences") as failure:
            verb(log, target)
        assert failure.value.hint is not None
        assert "OPTIMIZE and VACUUM" in failure.value.hint
    _delta(log, target).restore(_delta(log, target).version() - 1)
    check_all(log, target)


@proves("what was erased is nowhere", how="compacted by another engine")
@pytest.mark.parametrize("layout", [FOLDERS, DAYS])
def test_an_erasure_removes_what_another_program_has_written(
    log: Log, target: Target, monkeypatch: pytest.MonkeyPatch, layout: int
) -> None:
    """No payload stays in a file that no commit names.  Mutant: foreign files stay until VACUUM."""
    log.publish_many(12)
    log.seal(max_events=3)
    yesterday(log)
    epochs = log_epochs(log.connection, log.topic)
    (bring_folders if layout == FOLDERS else bring)(log, target, epochs)
    _delta(log, target, layout).optimize.z_order(["event_id"])

    def left() -> int:
        found = 0
        for path in target.root.rglob("*.parquet"):
            found += sum(
                each in {b"p3", b"p4"}
                for each in pq.read_table(path, partitioning=None)["payload"].to_pylist()
            )
        return found

    with monkeypatch.context() as mutant:
        mutant.setattr(erasing, "is_foreign", lambda _: False)
        erase(log.url, What(log.topic, key="k3"), "case 1", [target])
        assert left() > 1
    erase(log.url, What(log.topic, key="k4"), "case 2", [target])
    assert left() == 0
    assert set(states(log)) == {"verified"}
