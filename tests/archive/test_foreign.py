"""Another engine runs OPTIMIZE and VACUUM on a table: nothing is lost, and no row comes twice."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from ops.archive.auditing import audit_copies
from ops.archive.readers import plain_reader
from ops.archive.rollup import rollup
from ops.backfill.missing import audit_files
from ops.retention.clean import clean
from ops.seal import log_epochs
from penstock import archive
from penstock.archive.format import DAYS
from penstock.archive.table import ArchiveTable
from penstock.archive.targets import Target
from penstock.errors import CopyDamaged, EpochMissing
from tests.archive.logs import Log, bring, states
from tests.archive.test_clean import keep
from tests.archive.test_rollup import check_all, day_files, yesterday


def _delta(log: Log, target: Target) -> DeltaTable:
    found = ArchiveTable(target, log.known_as).delta(DAYS)
    assert found is not None
    return found


def _vacuum(log: Log, target: Target) -> None:
    """As the other engine does it, with the shortest time that there is."""
    _delta(log, target).vacuum(
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


@pytest.mark.parametrize("verb", [_audit, _files, _rollup])
def test_what_was_optimized_is_the_archive_still(optimized: Log, target: Target, verb: Any) -> None:
    """Read by its columns, and compared with the seals; VACUUM takes nothing then."""
    verb(optimized, target)
    _vacuum(optimized, target)
    check_all(optimized, target)


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


def test_clean_drops_only_what_the_delta_log_names(optimized: Log, target: Target) -> None:
    """The files that it reads are there after a VACUUM.  Guard: it reads what the log names."""
    events = len(optimized.rows())
    keep(optimized)
    for _ in range(2):  # a copy that has moved during a run counts for the next one
        clean(optimized.url, optimized.topic, [target], plain_reader(optimized.url))
    assert _low(optimized) > 1
    _vacuum(optimized, target)
    assert _whole(optimized, target) == events


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
        clean(log.url, log.topic, [target], plain_reader(log.url))
    assert _low(log) > 1
    _vacuum(log, target)
    with pytest.raises(EpochMissing):
        _whole(log, target)


def test_what_was_dropped_before_is_found_again_after_a_vacuum(log: Log, target: Target) -> None:
    """The manifest names files that are gone. A look for lost files finds the rows elsewhere."""
    log.publish_odd()
    log.publish_many(24)
    log.seal(max_events=6)
    events = len(log.rows())
    bring(log, target, log_epochs(log.connection, log.topic))
    keep(log)
    clean(log.url, log.topic, [target], plain_reader(log.url))
    assert _low(log) > 1
    _optimize(log, target)
    _vacuum(log, target)
    with pytest.raises(EpochMissing, match="penstock backfill"):
        _whole(log, target)
    assert audit_files(log.url, log.topic, target) == []
    assert _whole(log, target) == events
    assert set(states(log)) == {"verified"}


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
