"""A copy whose bytes have changed: who meets it says so, and what is damaged is made again."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ops.archive.auditing import Share, audit_copies
from ops.archive.read_back import plain_reader
from ops.backfill.missing import audit_files
from ops.seal import log_epochs, missing_copies, suspected_copies
from penstock import archive, database
from penstock.archive.copies import key_of
from penstock.archive.targets import Target
from penstock.errors import EpochMissing, InvalidPartition, TargetUnavailable, TopicNotFound
from tests.archive.logs import TOPIC, Log, archived, bring, flip, only_file, states
from tests.contract.databases import ContractDatabase
from tests.contract.tenants import THEIRS, as_login, tenant, tenants_of, three_topics
from tests.kit.log import topic
from tests.kit.proof import proves


@pytest.fixture
def log(db: ContractDatabase) -> Log:
    """A topic of two partitions, without events yet."""
    own = db.connect()
    topic(own, 2, TOPIC)
    return Log(own, db.url, TOPIC)


@pytest.fixture
def targets(log: Log, tmp_path: Path) -> tuple[Target, Target]:
    """Two targets that hold a log epoch of each partition, which the database has dropped."""
    one, two = Target("one", str(tmp_path / "one")), Target("two", str(tmp_path / "two"))
    bring(log, two, archived(log, one))
    database.execute(log.connection, "UPDATE penstock.partitions SET low_sequence = 7")
    return one, two


def _read(log: Log, *targets: Target) -> list[Any]:
    with archive.read(log.url, TOPIC, 0, 1, 6, targets=targets) as reader:
        assert sum(batch.num_rows for batch in reader) == 6
        return reader.failures


@proves("D10 over damage")
def test_a_reader_that_meets_a_damaged_copy_has_it_made_again(
    log: Log, targets: tuple[Target, Target]
) -> None:
    """It goes on with the next target, and leaves a note; who looks for lost files reads it back.

    Guards: the note of the reader, and that it is read back.
    """
    one, two = targets
    flip(only_file(one, log, (0, 1)))
    assert audit_files(log.url, TOPIC, one) == []  # its size is right
    assert [each.target for each in _read(log, one, two)] == ["one"]
    (noted,) = suspected_copies(log.connection, TOPIC)
    assert (noted.key, noted.target) == ((0, 1), "one")
    assert "is damaged" in noted.reason
    assert missing_copies(log.connection, TOPIC, "one") == []  # it counts until it is read back
    assert _read(log, one, two)
    assert len(suspected_copies(log.connection, TOPIC)) == 1
    assert audit_files(log.url, TOPIC, two) == []
    (forgotten,) = audit_files(log.url, TOPIC, one)
    assert (forgotten.partition, forgotten.log_epoch) == (0, 1)
    assert suspected_copies(log.connection, TOPIC) == []
    (missing,) = missing_copies(log.connection, TOPIC, "one")
    assert key_of(missing) == (0, 1)
    assert not _read(log, one, two)


@proves("D10 over damage", guard="the note")
def test_without_the_note_nobody_looks_at_the_copy(
    db: ContractDatabase, log: Log, targets: tuple[Target, Target]
) -> None:
    """Mutant."""
    state = "c.state = 'verified'"
    db.without_guard("suspect_copy", f"AND {state}", "AND FALSE")
    one, two = targets
    flip(only_file(one, log, (0, 1)))
    assert _read(log, one, two)
    assert audit_files(log.url, TOPIC, one) == []


@proves("D10 over damage")
@pytest.mark.mariadb_differs("what calls clear_suspicion there")
def test_what_was_noted_and_is_whole_stays(log: Log, targets: tuple[Target, Target]) -> None:
    """The reader's own mount was at fault, or it was copied back since."""
    one, two = targets
    file = only_file(one, log, (0, 1))
    content = file.read_bytes()
    flip(file)
    _read(log, one, two)
    file.write_bytes(content)
    assert audit_files(log.url, TOPIC, one) == []
    assert suspected_copies(log.connection, TOPIC) == []
    assert set(states(log)) == {"verified"}


def test_the_last_copy_is_damaged(log: Log, targets: tuple[Target, Target]) -> None:
    one, two = targets
    for each in targets:
        flip(only_file(each, log, (0, 1)))
    with pytest.raises(EpochMissing, match="no copy of it can be read"):
        _read(log, one, two)
    assert len(suspected_copies(log.connection, TOPIC)) == 2


def test_an_audit_reads_every_copy_and_forgets_what_is_damaged(
    log: Log, targets: tuple[Target, Target], tmp_path: Path
) -> None:
    """Guard: it reads, and does not look at sizes alone."""
    one, two = targets
    flip(only_file(one, log, (1, 1)))
    read = plain_reader(log.url)
    found = audit_copies(read, log.url, TOPIC, one)
    assert (found.copies, [(each.partition, each.log_epoch) for each in found.forgotten]) == (
        2,
        [(1, 1)],
    )
    assert audit_copies(read, log.url, TOPIC, one).copies == 1
    assert audit_copies(read, log.url, TOPIC, two).forgotten == ()
    (tmp_path / "two").rename(tmp_path / "elsewhere")
    with pytest.raises(TargetUnavailable):
        audit_copies(read, log.url, TOPIC, two)
    assert states(log).count("missing") == 1


def test_shares_are_a_round(log: Log) -> None:
    """Every copy has its turn once, in days or in hours."""
    log.publish_many(40)
    log.seal(max_events=2)
    epochs = log_epochs(log.connection, TOPIC)
    begin = dt.datetime(2026, 2, 27, 23, 30, tzinfo=dt.UTC)
    days = [Share.of_day(5, begin + dt.timedelta(days=n)) for n in range(5)]
    hours = [Share.of_hour(2, begin + dt.timedelta(hours=n)) for n in range(48)]
    for shares in (days, hours, [Share()]):
        turns = Counter(key_of(each) for share in shares for each in epochs if share.has(each))
        assert turns == dict.fromkeys(map(key_of, epochs), 1)


def test_a_note_is_of_a_recorded_copy_of_a_topic_that_one_may_read(
    db: ContractDatabase, log: Log, targets: tuple[Target, Target]
) -> None:
    """D11: a tenant can neither note anything of another one's copies, nor learn of them."""

    def note(own: Any, **changed: Any) -> bool:
        binds = {"topic": TOPIC, "partition": 0, "log_epoch": 1, "target": "one", "reason": "x"}
        return bool(database.call(own, "suspect_copy", **{**binds, **changed})[0][0])

    own = log.connection
    assert [note(own), note(own, reason="y"), note(own, target="none")] == [True, False, False]
    assert not note(own, log_epoch=9)
    with pytest.raises(InvalidPartition):
        note(own, partition=9)
    with tenants_of(db) as tenants:
        three_topics(tenants)
        tenant(tenants, "theirs")
        with as_login(tenants, tenant(tenants, "ours")) as spy, pytest.raises(TopicNotFound):
            note(spy, topic=THEIRS)
