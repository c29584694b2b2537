"""Erasures: what is erased is nowhere any more, and everything else is as it was."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ops.archive.copying import plan_of
from ops.archive.epoch_reader import EpochReader
from ops.backfill import requests as requests
from ops.backfill.running import run_backfill
from ops.backfill.workers import Places, workers
from ops.erase import Erasure, What, erase, list_erasures
from ops.seal import copies_of, log_epochs, seal
from penstock import database
from penstock.archive.checksum import EpochChecksum
from penstock.archive.targets import Target
from penstock.errors import (
    BelowLowSequence,
    ErasureRefused,
    InvalidArgument,
    InvalidPartition,
    RetentionRefused,
    TargetUnavailable,
    TopicNotFound,
)
from penstock.subscriptions import stream
from penstock.topics import holds
from tests.archive.logs import Log, bring
from tests.contract.databases import ContractDatabase
from tests.contract.kit import open_transaction
from tests.contract.stream_kit import Guard, without
from tests.kit.copies import drop, record, remove
from tests.kit.erasing import (
    BY_KEY,
    SECRET,
    TOPIC,
    WHO,
    WHY,
    archived,
    left_in,
    publish_secrets,
    secret_log,
)
from tests.kit.proof import proves

#: The sequences of the key, in each partition.
PLACES = [2, 6, 10]

NO_HOLD: Guard = {
    "postgres": ("require_unheld", "IF FOUND THEN", "IF false THEN"),
    "mysql": ("require_unheld", "IF held_by IS NOT NULL THEN", "IF FALSE THEN"),
}
NO_BLOCK: Guard = {
    "postgres": ("require_no_block", "IF FOUND THEN", "IF false THEN"),
    "mysql": ("require_no_block", "IF hit > 0 THEN", "IF FALSE THEN"),
}
COPIES_COUNT: Guard = {
    "postgres": ("reissue_seal", "SET state = 'missing'", "SET state = c.state"),
    "mysql": ("reissue_seal", "SET c.state = 'missing'", "SET c.state = c.state"),
}
UNLOCKED_RECORD: Guard = {
    "postgres": ("record_copy", "FOR SHARE;", ";"),
    "mysql": ("record_copy", "LOCK IN SHARE MODE;", ";"),
}
REHYDRATED_STAY: Guard = {
    "postgres": ("put_tombstones", "r.sequence = ANY (sequences)", "false"),
    "mysql": ("put_tombstones", "WHERE r.partition_id = part_id", "WHERE r.partition_id = 0"),
}
LETTERS_AS_BROUGHT: Guard = {
    "postgres": ("bring_letter", "IF FOUND THEN", "IF false THEN"),
    "mysql": ("bring_letter", "IF erased_by IS NOT NULL THEN", "IF FALSE THEN"),
}


@pytest.fixture
def log(db: ContractDatabase) -> Log:
    """A log with a secret in it."""
    return secret_log(db.connect(), db.url)


@pytest.fixture
def targets(tmp_path: Path) -> list[Target]:
    """Two of them."""
    return [Target(name, str(tmp_path / name)) for name in ("a", "b")]


def _payloads(log: Log) -> list[bytes]:
    return [bytes(row[7]) for row in log.rows()]


def _anew(log: Log, key: str | None = WHO, event_id: str | None = None, **given: Any) -> str:
    """An erasure that was begun, and has done nothing yet."""
    binds = {"topic": TOPIC, "reason": WHY, "replace_key": False} | given
    rows = database.call(log.connection, "begin_erasure", key=key, event_id=event_id, **binds)
    return str(rows[0][0])


def _step(own: Any, erasure: str, sequences: list[int], **given: Any) -> int:
    binds = {"partition": 0, "old_checksum": None, "checksum": None} | given
    ((events,),) = database.call(own, "erase_events", erasure=erasure, sequences=sequences, **binds)
    return int(events)


def _counts(done: Erasure) -> tuple[int, int, int, int]:
    return done.events_in_database, done.events_in_archive, done.letters, done.files


def _member(own: Any, name: str = "mirror") -> dict[str, Any]:
    """A consumer that holds partition 0."""
    stream.subscribe(own, name, [TOPIC])
    member = stream.join(own, name, "one")
    lease = min(stream.check_in(own, member), key=lambda each: each.partition_id)
    return {
        "subscription": name,
        "consumer": "one",
        "partition_id": lease.partition_id,
        "lease_epoch": lease.lease_epoch,
    }


@proves("what was erased is nowhere")
@pytest.mark.long_on("mysql")
def test_a_key_is_erased_wherever_it_is(log: Log, targets: list[Target]) -> None:
    """Sealed, archived, dead and not sealed: a tombstone; all else stays, byte for byte."""
    own = log.connection
    sealed = log.seal(max_events=4)
    for target in targets:
        bring(log, target, sealed)
    publish_secrets(own)
    fence = _member(own)
    for sequence in (1, 2):
        database.call(own, "dead_letter", **fence, sequence=sequence, reason="secret is no number")
    before, checksums = log.rows(), {each.checksum for each in log_epochs(own, TOPIC)}

    looked = erase(log.url, BY_KEY, WHY, targets, dry_run=True)
    assert (_counts(looked), list_erasures(own), log.rows()) == ((12, 0, 0, 0), [], before)
    done = erase(log.url, BY_KEY, WHY, targets)

    assert _counts(done) == (12, 0, 1, 12)
    mark = {"penstock-erased": done.erasure}
    for old, new in zip(before, log.rows(), strict=True):
        if old[3] != WHO:
            assert new == old
            continue
        assert (new[:6], new[8:]) == (old[:6], old[8:])
        assert (json.loads(new[6]), bytes(new[7])) == (mark, b"")
    letters = database.call(own, "dead_letters_of", **_all_letters("mirror"))
    assert sorted((row[3], row[9], row[12]) for row in letters) == [
        (1, 7, "secret is no number"),
        (2, 0, f"erased by {done.erasure}"),
    ]
    _require_archive(log, targets, checksums)
    (found,) = list_erasures(own, TOPIC)
    assert (found.reason, found.event_id, found.by_key) == (WHY, None, True)
    assert (found.events, found.letters, found.seals) == (12, 1, 6)
    assert found.finished_at is not None
    assert found.requested_by
    assert WHO not in repr(found)
    assert "subscription 'mirror'" in done.outside[0]
    # A second one finds nothing more, and changes nothing.
    rows = log.rows()
    again = erase(log.url, BY_KEY, WHY, targets)
    assert (_counts(again), log.rows()) == ((0, 0, 0, 0), rows)


def _all_letters(subscription: str) -> dict[str, Any]:
    names = ("of_topic", "of_key", "of_type", "of_state", "before_id")
    return dict.fromkeys(names) | {"subscription": subscription, "max_rows": 100}


def _require_archive(log: Log, targets: list[Target], old: set[str]) -> None:
    """Every copy is recorded with a new checksum, is the log, and nothing else lies there."""
    assert left_in(*targets) == 0
    states = [each.state for each in copies_of(log.connection, TOPIC)]
    assert states == ["verified"] * len(states)
    ends = {e.partition: e.last_sequence for e in log_epochs(log.connection, TOPIC)}
    logged = [row for row in log.rows() if row[1] <= ends[row[0]]]
    for target in targets:
        assert archived(log, target) == logged
    reissued = database.call(log.connection, "reissued_of", topic=TOPIC)
    assert {row[2] for row in reissued} <= old
    assert {row[3] for row in reissued} <= {e.checksum for e in log_epochs(log.connection, TOPIC)}


def _rehydrate(log: Log, targets: list[Target]) -> None:
    """All of the first partition comes back."""
    window = requests.Window(0, 1, 10)
    asked = requests.request_backfill(log.connection, TOPIC, "rehydrate", "", window)
    places = Places(
        spark=lambda: pytest.fail("no Spark"),
        target=lambda name: pytest.fail("no copy"),
        targets=lambda: targets,
        sink=lambda address, beside: pytest.fail("no sink"),
    )
    run_backfill(log.url, workers(places), request=asked.request)


@proves("what was erased is nowhere")
def test_what_was_rehydrated_is_erased_without_the_lost_copies(
    db: ContractDatabase, log: Log, targets: list[Target]
) -> None:
    """SQL reads it, so it is not gone; what nobody has is, and cannot be erased.

    Guard: tombstones go into what was rehydrated, too.
    """
    own, lost = log.connection, targets[:1]
    sealed = log.seal(max_events=4)
    bring(log, lost[0], sealed)
    drop(own, TOPIC, lost)
    _rehydrate(log, lost)
    before = log.rows_of(0)
    remove(lost[0])

    done = erase(log.url, BY_KEY, WHY, [], without=["a"])

    assert (_counts(done), done.gone) == ((3, 0, 0, 0), 3)
    after = log.rows_of(0)
    assert [row[1] for row in after if row[7] == b""] == PLACES
    assert [row for row in after if row[3] != WHO] == [row for row in before if row[3] != WHO]
    seals = {each.checksum for each in log_epochs(own, TOPIC) if each.partition == 0}
    assert not seals & {each.checksum for each in sealed}
    assert _counts(erase(log.url, BY_KEY, WHY, [], without=["a"])) == (0, 0, 0, 0)
    with pytest.raises(BelowLowSequence):
        _step(own, _anew(log), [2], partition=1)
    without(db, REHYDRATED_STAY)
    erase(log.url, What(TOPIC, event_id=str(before[0][2])), WHY, [], without=["a"])
    assert log.rows_of(0)[0] == before[0]


@proves("what was erased is nowhere")
@pytest.mark.long_on("mariadb")
def test_what_the_database_has_dropped_is_erased_too(log: Log, targets: list[Target]) -> None:
    """Only the archive has it, and what was rehydrated of it: both are what the log was."""
    own = log.connection
    sealed = log.seal(max_events=4)
    for target in targets:
        bring(log, target, sealed)
    before, checksums = log.rows(), {each.checksum for each in sealed}
    drop(own, TOPIC, targets)
    _rehydrate(log, targets)
    with pytest.raises(TargetUnavailable, match="not known here: b"):
        erase(log.url, BY_KEY, WHY, targets[:1])

    done = erase(log.url, BY_KEY, WHY, targets)

    assert _counts(done) == (0, 6, 0, 12)
    assert left_in(*targets) == 0
    found = [archived(log, target) for target in targets]
    assert found[0] == found[1]
    assert [row[1] for row in found[0]] == [row[1] for row in before]
    erased = [row[:2] for row in found[0] if row[7] == b""]
    assert erased == [(part, place) for part in range(2) for place in PLACES]
    assert [row for row in found[0] if row[3] != WHO] == [r for r in before if r[3] != WHO]
    assert log.rows_of(0)[:10] == [row for row in found[0] if row[0] == 0]
    now = {each.checksum for each in log_epochs(own, TOPIC)}
    assert not now & checksums
    assert {each.state for each in copies_of(own, TOPIC)} == {"verified"}
    with pytest.raises(RetentionRefused):  # the old bytes are no copy any more
        record(own, sealed[0], "a")


def test_an_event_is_erased_by_its_id_and_with_its_key(log: Log) -> None:
    """The other events of the key stay; the record has no key."""
    own = log.connection
    rows = log.rows()
    # Guard: the id as the database writes it; the archive has it as text.
    what = What(TOPIC, event_id=f"{{{str(rows[1][2]).upper()}}}", replace_key=True)
    assert what == What(TOPIC, event_id=str(rows[1][2]), replace_key=True)
    with pytest.raises(InvalidArgument, match="'xyz' is not the id of an event"):
        What(TOPIC, event_id="xyz")
    done = erase(log.url, what, WHY, [])
    after = log.rows()
    assert [n for n, row in enumerate(after) if row != rows[n]] == [1]
    assert (after[1][3], bytes(after[1][7])) == (None, b"")
    (found,) = list_erasures(own)
    assert (found.erasure, found.event_id, found.replace_key) == (
        done.erasure,
        str(rows[1][2]),
        True,
    )
    # The same erasure is gone on with until it is finished; another key opens another.
    first = _anew(log)
    assert _anew(log) == first
    assert _anew(log, "other") != first
    stored = db_text(log)
    assert WHO not in stored
    assert SECRET.decode() not in stored


def db_text(log: Log) -> str:
    """All that the record has."""
    tables = ("erasures", "erased_events", "reissued_seals")
    return repr(
        [database.execute(log.connection, f"SELECT * FROM penstock.{each}") for each in tables]
    )


def test_what_cannot_be_erased_is_refused(log: Log) -> None:
    """Typed errors, and nothing is written."""
    rows = log.rows()
    for error, given in (
        (InvalidArgument, {"key": None}),
        (InvalidArgument, {"event_id": str(uuid.uuid4())}),
        (InvalidArgument, {"reason": " "}),
        (InvalidArgument, {"reason": "x" * 1001}),
        (TopicNotFound, {"topic": "bank/nothing"}),
    ):
        with pytest.raises(error):
            _anew(log, **given)
    assert list_erasures(log.connection) == []
    erasure = _anew(log)
    log.seal(max_events=4)
    for sequences in ([], [0], [11], [4, 5]):
        with pytest.raises(InvalidArgument):
            _step(log.connection, erasure, sequences)
    with pytest.raises(InvalidPartition):
        _step(log.connection, erasure, [1], partition=2)
    with pytest.raises(InvalidArgument):
        _step(log.connection, str(uuid.uuid4()), [1])
    with pytest.raises(InvalidArgument, match="not the key"):
        database.call(log.connection, "erase_letters", erasure=erasure, key="x", max_rows=1)
    for epoch in log_epochs(log.connection, TOPIC):
        record(log.connection, epoch, "a")
    drop(log.connection, TOPIC, [Target("a", "/nowhere")])
    with pytest.raises(BelowLowSequence):
        _step(log.connection, erasure, [2])
    with pytest.raises(RetentionRefused):
        _step(log.connection, erasure, [2], old_checksum="0" * 64, checksum="1" * 64)
    assert [row[7] for row in rows if SECRET in bytes(row[7])]
    assert list_erasures(log.connection)[0].events == 0


@proves("what is held is not erased")
def test_a_hold_refuses(db: ContractDatabase, log: Log) -> None:
    """Nothing is erased, also nothing of what is not held; and in SQL. Mutant: nobody asks."""
    own = log.connection
    rows = log.rows()
    holds.place_hold(own, TOPIC, "case 17", "a claim", partition=1, first_sequence=6)
    with pytest.raises(ErasureRefused, match=r"case 17.*sequence 6 of partition 1"):
        erase(log.url, BY_KEY, WHY, [])
    erasure = _anew(log)
    with pytest.raises(ErasureRefused, match=r"case 17.*sequence 6 of partition 1"):
        _step(own, erasure, [6], partition=1)
    assert log.rows() == rows
    assert _step(own, erasure, [2], partition=1) == 1
    without(db, NO_HOLD)
    assert _step(own, erasure, [6], partition=1) == 1


@proves("what is held is not erased")
def test_an_open_block_refuses(db: ContractDatabase, log: Log) -> None:
    """Its bytes have to be sent again as they are. Mutant: nobody looks at blocks."""
    own = log.connection
    fence = _member(own)
    database.call(own, "open_block", **fence, max_events=4, max_bytes=1 << 20)
    erasure = _anew(log)
    with pytest.raises(ErasureRefused, match='relay "mirror"'):
        _step(own, erasure, [2])
    assert _step(own, erasure, [6]) == 1
    without(db, NO_BLOCK)
    assert _step(own, erasure, [2]) == 1


@proves("what is held is not erased")
def test_a_block_that_is_being_opened_is_waited_for(db: ContractDatabase, log: Log) -> None:
    """Guard: both lock the lease."""
    own, other = log.connection, db.connect()
    fence = _member(own)
    erasure = _anew(log)
    with ThreadPoolExecutor(1) as pool, open_transaction(db) as relay:
        database.call(relay, "open_block", **fence, max_events=4, max_bytes=1 << 20)
        step = pool.submit(_step, other, erasure, [2])
        db.wait_until_blocked(other)
        relay.commit()
        with pytest.raises(ErasureRefused):
            step.result(30)


@proves("no copy with old bytes counts")
def test_no_copy_with_old_bytes_counts(db: ContractDatabase, log: Log) -> None:
    """One that is being recorded, too. Mutant: copies are left as they are."""
    own, other = log.connection, db.connect()
    (epoch, _) = log.seal()
    record(own, epoch, "a")
    erasure = _anew(log)
    with ThreadPoolExecutor(1) as pool, open_transaction(db) as slow:
        record(slow, epoch, "b")
        step = pool.submit(_step, other, erasure, [2])
        db.wait_until_blocked(other)
        slow.commit()
        assert step.result(30) == 1
    assert {each.state for each in copies_of(own, TOPIC)} == {"missing"}
    with pytest.raises(RetentionRefused):
        record(own, epoch, "c")
    without(db, COPIES_COUNT)
    record(own, log_epochs(own, TOPIC)[0], "a")
    _step(own, erasure, [6])
    assert {each.state for each in copies_of(own, TOPIC)} == {"missing", "verified"}


@proves("no copy with old bytes counts", guard="the lock in record_copy")
@pytest.mark.parametrize("db", ["postgres", "mysql"], indirect=True)
def test_without_the_lock_the_slower_one_counts(db: ContractDatabase, log: Log) -> None:
    """Mutant: a copy is recorded without a lock on its log epoch. MariaDB waits for it anyway."""
    without(db, UNLOCKED_RECORD)
    (epoch, _) = log.seal()
    erasure = _anew(log)
    with open_transaction(db) as slow:
        record(slow, epoch, "b")
        assert _step(log.connection, erasure, [2]) == 1
        slow.commit()
    assert {each.state for each in copies_of(log.connection, TOPIC)} == {"verified"}


@proves("what was erased is nowhere", guard="a late letter is replaced")
def test_a_letter_that_is_brought_late_is_a_tombstone(db: ContractDatabase, log: Log) -> None:
    """A consumer had read it in the archive before. Mutant: it is stored as it was read."""
    own = log.connection
    fence = _member(own)
    for epoch in log.seal():
        record(own, epoch, "a")
    erasure = _anew(log)
    assert _step(own, erasure, PLACES) == 3
    db.run("UPDATE penstock.partitions SET low_sequence = 11")

    def stored() -> int:
        database.call(own, "bring_letter", **fence, **_letter(log))
        (row,) = database.call(own, "dead_letters_of", **_all_letters("mirror"))
        db.run("DELETE FROM penstock.dead_letters")
        return int(row[9])

    assert stored() == 0
    without(db, LETTERS_AS_BROUGHT)
    assert stored() == 6


def _letter(log: Log) -> dict[str, Any]:
    (moment,) = database.execute(log.connection, "SELECT MAX(e.created_at) FROM penstock.events e")
    return {
        "sequence": 2, "event_id": str(uuid.uuid4()), "key": WHO, "type": "t",
        "content_type": "text/plain", "headers": "{}", "payload": SECRET,
        "created_at": moment[0],
    }  # fmt: skip


def test_a_seal_during_an_erasure_waits_for_it(db: ContractDatabase, log: Log) -> None:
    """Its checksum is of what is there then."""
    own, other = log.connection, db.connect()
    erasure = _anew(log)
    with ThreadPoolExecutor(1) as pool, open_transaction(db) as eraser:
        _step(eraser, erasure, [2])
        sealed = pool.submit(seal, other, TOPIC, max_age_seconds=0)
        db.wait_until_blocked(other)
        eraser.commit()
        epoch = sealed.result(30)[0]
    plan = plan_of(next(e for e in log_epochs(own, TOPIC) if e.log_epoch == epoch.log_epoch))
    seen = EpochChecksum()
    for batch in EpochReader(log.url, TOPIC).read(plan):
        seen.add(batch)
    assert seen.hexdigest() == epoch.checksum


@pytest.mark.parametrize("db", ["mysql", "mariadb"], indirect=True)
def test_a_slice_that_clean_replaces_refuses(db: ContractDatabase, log: Log) -> None:
    """Otherwise its copy of before would take the place of what was erased."""
    erasure = _anew(log)
    database.call(log.connection, "note_kept_slice", slice="b1")
    try:
        with pytest.raises(ErasureRefused, match="clean is making a copy"):
            _step(log.connection, erasure, [2])
    finally:
        database.call(log.connection, "note_kept_slice", slice=None)
    assert _step(log.connection, erasure, [2]) == 1
