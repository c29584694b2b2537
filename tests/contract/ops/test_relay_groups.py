"""Relays with several sinks: where they stand, and what their sinks and their quorum may be."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ops.relay.groups import SinkResult, group_status, serve
from ops.relay.relay import Relay
from ops.seal import seal
from ops.sinks.base import Channel, RelayBlock, SinkUnavailable
from ops.sinks.jsonl import JsonlSink
from penstock import database
from penstock.archive.targets import Target
from penstock.errors import AlreadyExists, InvalidArgument, SubscriptionNotFound
from penstock.log.histories import reconcile
from penstock.subscriptions import stream
from penstock.subscriptions.overview import lag, skips
from penstock.subscriptions.relay_groups import (
    RelayGroupLag,
    by_quorum,
    delete_relay_group,
    relay_group_lag,
    relay_groups,
    set_relay_group,
)
from penstock.topics import names
from tests import command
from tests.contract.databases import ContractDatabase
from tests.contract.ops.test_relay import FAST
from tests.contract.stream_kit import Guard, without
from tests.kit.cleaning import clean_unread
from tests.kit.copies import copy_all, drop
from tests.kit.log import topic
from tests.kit.proof import proves
from tests.kit.sinks import InFront
from tests.kit.stream import STREAM, more

RELAY = "everywhere"

#: What a sink has passed is where it stands now.
FORGETS_WHAT_WAS_PASSED: Guard = {
    "postgres": (
        "move_position",
        "PERFORM keep_passed(present.subscription_id, present.partition_id, stood_at);",
        "",
    ),
    "mysql": ("move_position", "CALL keep_passed(owner_id, source_id, stood_at);", ""),
}
#: Where the relay stood counts for nothing when its sinks or its quorum change.
NO_FLOOR: Guard = {
    "postgres": (
        "raise_relay_floors", "group_position(raise_relay_floors.group_id, p.partition_id)", "0",
    ),
    "mysql": ("raise_relay_floors", "group_position(own_id, n.partition_id) AS at", "0 AS at"),
}  # fmt: skip
#: A sink counts for events that it never gets.
COUNTS_TOO_EARLY: Guard = {
    "postgres": ("group_position", "n.started <= c.at AND ", ""),
    "mysql": ("group_position", "n.s <= c.at AND ", ""),
}
#: A sink can go although the others cannot reach the quorum.
ANY_REMOVAL: Guard = {
    "postgres": ("leave_relay_group", "PERFORM require_possible_quorum(own, own.ack_quorum);", ""),
    "mysql": ("leave_relay_group", "CALL require_possible_quorum(own_id, given_quorum);", ""),
}
#: Positions move while sinks or quorum change.
HOLDS_NOBODY: Guard = {
    "postgres": ("set_relay_group", "PERFORM hold_relay_members(own.id);", ""),
    "mysql": ("set_relay_group", "CALL hold_relay_members(own_id);", ""),
}
#: Retention goes by the quorum also where nothing is archived.
WITHOUT_COPIES: Guard = {
    "postgres": ("retained_for", " AND r.copies > 0", ""),
    "mysql": ("is_retained_for_quorum", " AND r.copies > 0", ""),
}
#: The same when it is set.
UNCHECKED_COPIES: Guard = {
    "postgres": ("require_retain_for", "IF FOUND AND retain_for", "IF false AND retain_for"),
    "mysql": ("require_retain_for", "IF wrong IS NOT NULL AND", "IF FALSE AND"),
}


def _relay(own: Any, events: int = 10, quorum: int = 2, sinks: str = "abc") -> None:
    topic(own, 1, STREAM)
    more(own, events=events)
    assert set_relay_group(own, RELAY, sinks, quorum, topics=[STREAM]) == len(sinks)


def _moves(own: Any, sink: str, position: int) -> None:
    """A sink takes everything up to a position."""
    member = stream.join(own, f"{RELAY}.{sink}", f"{sink}-{position}")
    (lease,) = stream.check_in(own, member)
    stream.commit(own, member, [(lease, position)])
    stream.leave(own, member)


def _at(own: Any) -> int:
    (found,) = relay_group_lag(own, RELAY)
    return found.position


@proves("a relay stands where its quorum is")
def test_it_stands_where_its_quorum_has_passed(db: ContractDatabase) -> None:
    """The second fastest of three moves it; each sink keeps a position of its own."""
    own = db.connect()
    _relay(own)
    assert _at(own) == 0
    _moves(own, "a", 8)
    assert _at(own) == 0
    _moves(own, "b", 5)
    assert _at(own) == 5
    _moves(own, "c", 3)
    (found,) = relay_group_lag(own, RELAY)
    assert found == RelayGroupLag(RELAY, STREAM, 0, 5, 10, 5, found.lag_seconds, 3, 2)
    assert found.lag_seconds > 0
    _moves(own, "c", 9)
    assert _at(own) == 8
    assert relay_groups(own)[RELAY].sinks == {each: f"{RELAY}.{each}" for each in "abc"}
    (line,) = by_quorum(own, lag(own))
    assert (line.subscription, line.position, line.lag_events) == (RELAY, 8, 2)


@proves("a relay stands where its quorum is")
@proves("a relay stands where its quorum is", guard="where it stood")
@pytest.mark.parametrize("guarded", [True, False])
def test_it_never_moves_back_with_a_sink(db: ContractDatabase, guarded: bool) -> None:
    """A person moves a sink back: that one sends again, and the relay has passed all the same."""
    own = db.connect()
    _relay(own)
    _moves(own, "a", 8)
    _moves(own, "b", 6)
    if not guarded:
        without(db, FORGETS_WHAT_WAS_PASSED)
    stream.seek(own, f"{RELAY}.b", STREAM, 0, 2)
    assert _at(own) == (6 if guarded else 1)
    if guarded:
        _moves(own, "b", 4)
        assert _at(own) == 6
        _moves(own, "b", 7)
        assert _at(own) == 7


@proves("a relay stands where its quorum is")
@proves("a relay stands where its quorum is", guard="where it stood")
@pytest.mark.parametrize("guarded", [True, False])
def test_it_never_moves_back_with_its_quorum(db: ContractDatabase, guarded: bool) -> None:
    """Neither when more sinks have to pass, nor when one is removed."""
    own = db.connect()
    _relay(own)
    for sink, position in (("a", 8), ("b", 6), ("c", 3)):
        _moves(own, sink, position)
    if not guarded:
        without(db, NO_FLOOR)
    set_relay_group(own, RELAY, [], 3)
    assert _at(own) == (6 if guarded else 3)
    set_relay_group(own, RELAY, [], 2)
    stream.unsubscribe(own, f"{RELAY}.a")
    assert _at(own) == (6 if guarded else 3)
    if guarded:
        _moves(own, "c", 9)
        assert _at(own) == 6
        _moves(own, "b", 10)
        assert _at(own) == 9


@proves("a relay stands where its quorum is")
@proves("a relay stands where its quorum is", guard="the start of a sink")
@pytest.mark.parametrize("guarded", [True, False])
def test_a_new_sink_counts_once_it_has_caught_up(db: ContractDatabase, guarded: bool) -> None:
    """It never gets what came before it, so it does not stand for another one there."""
    own = db.connect()
    _relay(own, sinks="ab")
    _moves(own, "a", 8)
    _moves(own, "b", 3)
    if not guarded:
        without(db, COUNTS_TOO_EARLY)
    assert set_relay_group(own, RELAY, ["late", "new"], 2, start="latest") == 2
    assert _at(own) == (3 if guarded else 10)
    if guarded:
        more(own, start=11)
        _moves(own, "new", 15)
        assert _at(own) == 3
        _moves(own, "b", 10)
        assert _at(own) == 8
        _moves(own, "a", 11)
        assert _at(own) == 11
        _moves(own, "late", 14)
        assert _at(own) == 14


def test_a_new_relay_begins_where_its_quorum_begins(db: ContractDatabase) -> None:
    """What comes before can never be with so many sinks, so it does not wait for that."""
    own = db.connect()
    topic(own, 1, STREAM)
    more(own)
    for sink, start in (("a", 1), ("b", 5), ("c", 9)):
        stream.subscribe(own, f"{RELAY}.{sink}", [STREAM], start)
    set_relay_group(own, RELAY, "abc", 2, topics=[STREAM])
    assert _at(own) == 4
    _moves(own, "a", 10)
    _moves(own, "b", 7)
    assert _at(own) == 7


@pytest.mark.parametrize("quorum", [0, -1, 3])
def test_an_impossible_quorum_is_refused(db: ContractDatabase, quorum: int) -> None:
    """It is never capped, and nothing was written."""
    own = db.connect()
    topic(own, 1, STREAM)
    with pytest.raises(InvalidArgument, match="ack_quorum"):
        set_relay_group(own, RELAY, "ab", quorum, topics=[STREAM])
    assert (relay_groups(own), lag(own)) == ({}, [])
    set_relay_group(own, RELAY, "ab", 1, topics=[STREAM])
    with pytest.raises(InvalidArgument, match="ack_quorum"):
        set_relay_group(own, RELAY, [], quorum)
    assert relay_groups(own)[RELAY].ack_quorum == 1


@proves("a relay stands where its quorum is")
@proves("a relay stands where its quorum is", guard="the check of a removal")
@pytest.mark.parametrize("guarded", [True, False])
def test_a_removal_that_makes_the_quorum_impossible_is_refused(
    db: ContractDatabase, guarded: bool
) -> None:
    """By the count of sinks, and where one that stays does not get what the relay waits for."""
    own = db.connect()
    _relay(own, sinks="ab")
    if not guarded:
        without(db, ANY_REMOVAL)
        stream.unsubscribe(own, f"{RELAY}.a")
        return
    with pytest.raises(InvalidArgument, match="would have 1 sinks, and ack_quorum is 2"):
        stream.unsubscribe(own, f"{RELAY}.a")
    _moves(own, "a", 8)
    set_relay_group(own, RELAY, ["new"], 2, start="latest")
    with pytest.raises(InvalidArgument, match="fewer than 2 sinks"):
        stream.unsubscribe(own, f"{RELAY}.b")
    assert sorted(relay_groups(own)[RELAY].sinks) == ["a", "b", "new"]
    _moves(own, "a", 10)
    _moves(own, "b", 10)
    stream.unsubscribe(own, f"{RELAY}.b")
    assert sorted(relay_groups(own)[RELAY].sinks) == ["a", "new"]
    assert _at(own) == 10


def test_names_and_topics_of_sinks(db: ContractDatabase) -> None:
    """All sinks read the same topics, and a name belongs to one of both kinds."""
    own = db.connect()
    _relay(own, sinks="ab")
    topic(own, 1, "tests/other")
    for wrong in ("", "a.b", "a/b", "a\n", "-", "x" * 64):
        with pytest.raises(InvalidArgument, match="name of a sink"):
            set_relay_group(own, RELAY, [wrong], 1)
    with pytest.raises(InvalidArgument, match="sink of the relay"):
        stream.subscribe(own, f"{RELAY}.a", ["tests/other"])
    with pytest.raises(InvalidArgument, match="topics"):
        set_relay_group(own, RELAY, "c", 1, topics=["tests/other"])
    with pytest.raises(AlreadyExists):
        set_relay_group(own, f"{RELAY}.a", "c", 1, topics=[STREAM])
    stream.subscribe(own, f"{RELAY}.c", [STREAM, "tests/other"])
    with pytest.raises(AlreadyExists, match="other topics"):
        set_relay_group(own, RELAY, "c", 1)
    with pytest.raises(SubscriptionNotFound):
        delete_relay_group(own, "nobody")
    delete_relay_group(own, RELAY)
    assert (relay_groups(own), relay_group_lag(own)) == ({}, [])
    assert {each.subscription for each in lag(own)} == {f"{RELAY}.{each}" for each in "abc"}
    names.delete_topic(own, STREAM, with_subscriptions=True)


def test_a_topic_with_a_relay_can_be_deleted(db: ContractDatabase) -> None:
    """Nothing of the relay in it stays behind."""
    own = db.connect()
    _relay(own)
    _moves(own, "a", 8)
    stream.seek(own, f"{RELAY}.a", STREAM, 0, 2)
    set_relay_group(own, RELAY, [], 1)
    names.delete_topic(own, STREAM, with_subscriptions=True)
    for table in ("relay_marks", "relay_floors"):
        assert db.run(f"SELECT count(*) FROM penstock.{table}") == [(0,)]


def _archived(own: Any, target: Target, *, copies: int = 1) -> None:
    """Ten events in two log epochs, of which the relay has passed the first with two sinks."""
    _relay(own)
    database.call(own, "set_retention", topic=STREAM, minimum_age_seconds=0, copies=copies,
                  max_bytes=None, origin="hand", targets=["one"] if copies else [])  # fmt: skip
    _moves(own, "a", 9)
    _moves(own, "b", 6)
    seal(own, STREAM, max_events=5, max_age_seconds=None)
    copy_all(own, STREAM, target)


def _low(own: Any) -> int:
    return int(dict(database.call(own, "low_sequences", topic=STREAM))[0])


@proves("a relay stands where its quorum is")
def test_retention_goes_by_the_quorum_if_it_is_told_to(db: ContractDatabase, tmp_path: Any) -> None:
    """What the quorum has passed is dropped; the late sink is not skipped, the archive has it."""
    own, target = db.connect(), Target("one", str(tmp_path / "archive"))
    _archived(own, target)
    drop(own, STREAM, [target])
    assert _low(own) == 1
    set_relay_group(own, RELAY, [], 2, retain_for="quorum")
    drop(own, STREAM, [target])
    assert (_low(own), skips(own)) == (6, [])
    (state,) = [each for each in lag(own) if each.subscription == f"{RELAY}.c"]
    assert state.position == 0
    set_relay_group(own, RELAY, [], 2)
    _moves(own, "b", 10)
    _moves(own, "a", 10)
    drop(own, STREAM, [target])
    assert _low(own) == 6


@proves("a relay stands where its quorum is", guard="the copies")
@pytest.mark.parametrize("guarded", [True, False])
def test_without_copies_retention_waits_for_every_sink(
    db: ContractDatabase, tmp_path: Any, guarded: bool
) -> None:
    """Retention by the quorum needs copies, also when they are given up later."""
    own, target = db.connect(), Target("one", str(tmp_path / "archive"))
    _archived(own, target)
    set_relay_group(own, RELAY, [], 2, retain_for="quorum")
    if not guarded:
        without(db, WITHOUT_COPIES)
    database.call(own, "set_retention", topic=STREAM, minimum_age_seconds=0, copies=0,
                  max_bytes=None, origin="hand", targets=[])  # fmt: skip
    clean_unread(own, STREAM)
    assert _low(own) == (1 if guarded else 6)


@proves("a relay stands where its quorum is", guard="the copies")
@pytest.mark.parametrize("guarded", [True, False])
def test_retention_by_the_quorum_is_refused_without_copies(
    db: ContractDatabase, guarded: bool
) -> None:
    """Also where no retention is set: then it would begin without copies one day."""
    own = db.connect()
    _relay(own)
    if not guarded:
        without(db, UNCHECKED_COPIES)
        set_relay_group(own, RELAY, [], 2, retain_for="quorum")
        return
    with pytest.raises(InvalidArgument, match="demands no verified copy"):
        set_relay_group(own, RELAY, [], 2, retain_for="quorum")
    with pytest.raises(InvalidArgument, match="retain_for cannot be some"):
        set_relay_group(own, RELAY, [], 2, retain_for="some")
    assert relay_groups(own)[RELAY].retain_for == "all"


class Dead(InFront):
    """A sink that takes nothing until it is well again."""

    is_dead = True

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        """Nothing, or as the sink."""
        if self.is_dead:
            raise SinkUnavailable("away")
        super().send_block(channel, block)


def _in_files(folder: Path) -> list[int]:
    return [
        int(json.loads(line)["sequence"])
        for each in sorted(folder.glob("*.jsonl"))
        for line in each.read_text("utf-8").splitlines()
    ]


@proves("a relay stands where its quorum is")
def test_a_dead_sink_gets_everything_later_once_and_in_order(
    db: ContractDatabase, tmp_path: Path
) -> None:
    """The relay goes on with the other two; what the dead one missed it gets by itself."""
    own = db.connect()
    _relay(own)
    folders = {name: tmp_path / name for name in "abc"}
    sinks: dict[str, Any] = {name: JsonlSink(str(folder)) for name, folder in folders.items()}
    sinks["c"] = Dead(sinks["c"])

    def serving(seconds: float) -> list[SinkResult]:
        return serve(
            {name: lambda name=name: sinks[name] for name in sinks},  # type: ignore[misc]
            lambda name, sink: Relay(db.url, f"{RELAY}.{name}", sink, backoff=FAST),
            threads=3,
            max_seconds=seconds,
        )

    *well, dead = serving(0.5)
    while not dead.last_error or _at(own) < 10:
        *well, dead = serving(0.5)
    assert (dead.events, dead.drained, dead.last_error[-4:]) == (0, False, "away")
    assert all(each.drained for each in well)
    group = relay_groups(own)[RELAY]
    assert [(each.sink, each.there, each.position) for each in group_status(own, group)] == [
        ("", "2 of 3, quorum 2", 10), ("a", "yes", 10), ("b", "yes", 10), ("c", "no", 0),
    ]  # fmt: skip
    assert _at(own) == 10
    (late,) = by_quorum(own, lag(own))
    assert (late.subscription, late.lag_events) == (RELAY, 0)
    more(own, start=11)
    sinks["c"].is_dead = False
    assert all(each.drained for each in serving(30))
    for folder in folders.values():
        assert _in_files(folder) == list(range(1, 21))
    assert relay_group_lag(own, RELAY)[0].sinks_there == 3


@proves("a relay stands where its quorum is", guard="the lock of its sinks")
@pytest.mark.parametrize("guarded", [True, False])
def test_a_commit_waits_for_a_change_of_the_quorum(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """Else the relay would be seen where the change takes it back from."""
    own = db.connect()
    _relay(own)
    for sink, position in (("a", 8), ("b", 6), ("c", 3)):
        _moves(own, sink, position)
    if not guarded:
        without(db, HOLDS_NOBODY)
    changing, committing = db.connect(autocommit=False), db.connect()
    set_relay_group(changing, RELAY, [], 3)
    if not guarded:
        _moves(committing, "b", 8)
        assert _at(own) == 8
        changing.commit()
        assert _at(own) == 6
        return
    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(_moves, committing, "b", 8)
        db.wait_until_blocked(committing)
        assert _at(own) == 6
        changing.commit()
        moving.result(30)
    assert _at(own) == 6


def test_a_history_takes_it_back_to_the_end_of_the_log(db: ContractDatabase) -> None:
    """What was lost was passed in the history before."""
    own = db.connect()
    _relay(own)
    _moves(own, "a", 10)
    _moves(own, "b", 9)
    stream.seek(own, f"{RELAY}.b", STREAM, 0, 2)
    set_relay_group(own, RELAY, [], 2)
    db.run("UPDATE penstock.relay_marks SET passed = 50, started = 40 WHERE passed > 0")
    db.run("UPDATE penstock.relay_floors SET position = 60")
    assert _at(own) == 60
    reconcile(own, "tests")
    assert _at(own) == 10


def test_the_commands(
    db: ContractDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Set, list, run, status, remove and delete."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    own = db.connect()
    topic(own, 1, STREAM)
    more(own)

    def said(*words: str) -> str:
        done = command.run(capsys, "relay", *words)
        return done.out + done.err

    said("group", "set", RELAY, "--sink=a", "--sink=b", "--ack-quorum=1", f"--topic={STREAM}")
    assert "would have" in said("group", "set", RELAY, "--ack-quorum=3")
    assert RELAY in said("group", "list")
    assert "differ" in said("group", "run", RELAY, f"--sink=a=jsonl:{tmp_path}")
    addresses = [f"--sink={name}=jsonl:{tmp_path / name}" for name in "ab"]
    done = command.run(
        capsys, "relay", "group", "run", RELAY, *addresses, "--threads=1", "--output=json"
    )
    assert [(each["sink"], each["events"], each["drained"]) for each in done.rows] == [
        ("a", 10, True), ("b", 10, True),
    ]  # fmt: skip
    assert _in_files(tmp_path / "a") == _in_files(tmp_path / "b") == list(range(1, 11))
    for words in (("status",), ("group", "status")):
        shown = command.run(capsys, "relay", *words, RELAY, "--output=json").rows
        assert [each["there"] for each in shown] == ["2 of 2, quorum 1", "yes", "yes"]
    assert "is removed" in said("group", "remove", RELAY, "b")
    assert "no sink 'b'" in said("group", "remove", RELAY, "b")
    assert "stay as subscriptions" in said("group", "delete", RELAY)
    assert "no relay" in said("group", "status", RELAY)
