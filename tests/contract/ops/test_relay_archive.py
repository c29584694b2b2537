"""A relay below the low sequence: its blocks are read from the archive, and stored once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.relay.relay import Relay
from ops.seal import seal
from ops.sinks.base import SinkUnavailable
from penstock import database
from penstock.archive.targets import Target
from penstock.errors import BelowLowSequence, InvalidArgument, LogBehind, StaleLease
from penstock.log.restores import report_position
from penstock.subscriptions import stream
from penstock.subscriptions.dead_letters import dead_letter, dead_letters
from penstock.topics import names
from tests import command
from tests.contract.databases import ContractDatabase
from tests.contract.ops.test_relay import FAST, Scripted
from tests.contract.stream_kit import Guard, end_lease, without
from tests.kit.copies import copy_all, drop
from tests.kit.log import part
from tests.kit.proof import proves
from tests.kit.sinks import relay_once
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, member_with_lease, more

#: A block of what the database has, or of what is not there yet, can be opened as a cold one.
ANY_END: Guard = {
    "postgres": ("open_cold_block", "AND up_to < low", ""),
    "mysql": ("open_cold_block", "AND up_to < low", ""),
}


@pytest.fixture
def sink(tmp_path: Path) -> Scripted:
    """It writes to files, in blocks of at most four events."""
    return Scripted(tmp_path / "out")


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """An archive target."""
    return Target("one", str(tmp_path / "archive"))


def _cold(own: Any, target: Target) -> None:
    """Ten events that only the archive has, and five that the database has; at the beginning."""
    filled(own)
    more(own, events=5, start=11)
    stream.reset(own, SUBSCRIPTION, "latest")
    seal(own, STREAM, max_events=5, max_age_seconds=None)
    copy_all(own, STREAM, target)
    database.call(own, "set_retention", topic=STREAM, minimum_age_seconds=0, copies=1,
                  max_bytes=None, origin="hand", targets=["one"])  # fmt: skip
    drop(own, STREAM, [target])
    more(own, events=5, start=16)
    stream.reset(own, SUBSCRIPTION, 1)
    assert dict(database.call(own, "low_sequences", topic=STREAM)) == {0: 16}


def _all(last: int = 20) -> list[tuple[int, int]]:
    return [(n, n) for n in range(1, last + 1)]


@proves("the whole history, relayed")
def test_it_reads_on_from_the_archive(db: ContractDatabase, sink: Scripted, target: Target) -> None:
    """Blocks end at the low sequence; then it goes on in the database."""
    _cold(db.connect(), target)
    done = Relay(db.url, SUBSCRIPTION, sink, archive=[target]).run_for(60)
    assert (done.events, done.failures, done.drained) == (20, 0, True)
    assert sink.written() == _all()
    assert [(each.first_sequence, each.last_sequence) for each in sink.blocks] == [
        *((1, 4), (5, 8), (9, 12), (13, 15)),
        *((16, 19), (20, 20)),
    ]


def test_a_block_keeps_the_address_under_which_it_was_recorded(
    db: ContractDatabase, sink: Scripted, target: Target
) -> None:
    """Also when its events come from the archive: it is the very same when it is sent again."""
    own = db.connect()
    _cold(own, target)
    sink.raises = [SinkUnavailable("away")]
    failures = 0
    while not failures:
        failures += Relay(db.url, SUBSCRIPTION, sink, archive=[target]).run_for(0.3).failures
    names.rename_topic(own, STREAM, "renamed")
    assert Relay(db.url, SUBSCRIPTION, sink, archive=[target], backoff=FAST).run_for(60).drained
    assert {each.topic for each in sink.blocks[1].events} == {sink.blocks[1].topic} == {STREAM}
    assert {each.topic for each in sink.blocks[2].events} == {"tests/renamed"}


def test_without_a_target_the_error_names_the_option(
    db: ContractDatabase, sink: Scripted, target: Target
) -> None:
    own = db.connect()
    _cold(own, target)
    member, lease = member_with_lease(own, "a")
    with pytest.raises(BelowLowSequence):
        relay_once(own, member, lease, sink, FAST)
    done = Relay(db.url, SUBSCRIPTION, sink).run_for(0.5)
    assert not done.drained
    assert sink.blocks == []


@proves("the whole history, relayed")
def test_a_successor_sends_the_block_that_was_recorded(
    db: ContractDatabase, sink: Scripted, target: Target
) -> None:
    """Guard: what is recorded decides, also when the successor's sink takes smaller blocks."""
    own = db.connect()
    _cold(own, target)
    member, lease = member_with_lease(own, "a")
    sink.raises = [OSError("the sink is gone")]
    failed = relay_once(own, member, lease, sink, FAST, targets=[target])
    assert failed is not None
    assert failed.retry_after is not None
    end_lease(db, "a")
    sink.max_block_events = 2
    successor, taken = member_with_lease(own, "b")
    with pytest.raises(StaleLease):
        relay_once(own, member, lease, sink, FAST, targets=[target])
    done = relay_once(own, successor, taken, sink, FAST, targets=[target])
    assert done is not None
    assert done.last_sequence == 4
    sent = [(each.first_sequence, each.last_sequence, each.reopened) for each in sink.blocks]
    assert sent == [(1, 4, False), (1, 4, True)]
    assert sink.written() == _all(4)


@proves("the whole history, relayed")
def test_a_refused_event_becomes_a_dead_letter_with_its_payload(
    db: ContractDatabase, sink: Scripted, target: Target
) -> None:
    own = db.connect()
    _cold(own, target)
    sink.refuses = {3}
    done = Relay(db.url, SUBSCRIPTION, sink, archive=[target]).run_for(60)
    assert (done.events, done.dead_letters) == (19, 1)
    assert sink.written() == [each for each in _all() if each[0] != 3]
    (letter,) = dead_letters(own, SUBSCRIPTION)
    assert (letter.sequence, letter.reason) == (3, "poison")
    whole = dead_letter(own, SUBSCRIPTION, letter.id)
    assert whole is not None
    assert whole.payload == b"3"


def test_an_open_block_whose_events_are_dropped_is_sent_from_the_archive(
    db: ContractDatabase, sink: Scripted, target: Target
) -> None:
    """It was recorded when the database still had them."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    sink.raises = [OSError("the sink is gone")]
    relay_once(own, member, lease, sink, FAST)
    seal(own, STREAM, max_events=5)
    copy_all(own, STREAM, target)
    db.run("UPDATE penstock.partitions SET low_sequence = 3")
    done = relay_once(own, member, lease, sink, FAST, targets=[target])
    assert done is not None
    assert sink.written() == _all(4)
    assert [each.reopened for each in sink.blocks] == [False, True]


@proves("the whole history, relayed", guard="where a cold block ends")
@pytest.mark.parametrize("mutant", [False, True])
def test_a_cold_block_ends_below_the_low_sequence(
    db: ContractDatabase, target: Target, mutant: bool
) -> None:
    """Guard: the comparison with the low sequence; else a block could hold events that come."""
    own = db.connect()
    _cold(own, target)
    member, lease = member_with_lease(own, "a")
    fence = {
        "subscription": SUBSCRIPTION, "consumer": member.consumer,
        "partition_id": lease.partition_id, "lease_epoch": lease.lease_epoch,
    }  # fmt: skip
    if mutant:
        without(db, ANY_END)
        assert database.call(own, "open_cold_block", **fence, up_to=1000)
        return
    for last in (0, 16, 1000):
        with pytest.raises(InvalidArgument):
            database.call(own, "open_cold_block", **fence, up_to=last)


def test_nothing_is_sent_from_a_stopped_partition(
    db: ContractDatabase, sink: Scripted, target: Target
) -> None:
    own = db.connect()
    _cold(own, target)
    member, lease = member_with_lease(own, "a")
    report_position(own, part(own, name=STREAM), 99, history=1, source="a sink")
    with pytest.raises(LogBehind):
        relay_once(own, member, lease, sink, FAST, targets=[target])
    assert sink.blocks == []


def test_the_commands_take_targets(
    db: ContractDatabase,
    target: Target,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`penstock consume` and `penstock relay`, each with and without `--target`."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    monkeypatch.setenv("PENSTOCK_POLICIES", str(tmp_path / "policies.yaml"))
    (tmp_path / "policies.yaml").write_text("targets: {}\n")
    own = db.connect()
    _cold(own, target)
    stream.subscribe(own, "side", [STREAM], 1)
    at = ("--target", f"one={target.uri}")
    refused = command.run(capsys, "consume", "side", "--until-idle")
    assert refused.code == 3
    assert "--target" in refused.err
    found = command.run(capsys, "consume", "side", "--until-idle", "--commit", *at)
    assert found.code == 0, found.err
    assert len(found.out.splitlines()) == 20
    out = f"jsonl:{tmp_path / 'out'}"
    assert command.run(capsys, "relay", SUBSCRIPTION, out, "--max-seconds", "0.2").code == 1
    assert command.run(capsys, "relay", SUBSCRIPTION, out, *at).code == 0


def test_a_relay_needs_no_archive_for_what_is_hot(db: ContractDatabase, sink: Scripted) -> None:
    filled(db.connect())
    relay = Relay(db.url, SUBSCRIPTION, sink)
    assert relay.run_for(10).drained
    assert sink.written() == _all(10)
