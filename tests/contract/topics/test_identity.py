"""A topic is known by its id outside of the database, so its address may change hands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops.relay.block import Backoff
from ops.relay.relay import Relay
from ops.sinks.base import Channel, RelayBlock
from ops.sinks.jsonl import JsonlSink
from penstock.errors import TopicNotFound
from penstock.leases.database_keeper import LeaseKeeper
from penstock.log import tail
from penstock.log.histories import histories, reconcile, restore_status
from penstock.subscriptions import stream
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, end_lease, without
from tests.kit.log import drain, known_as, put, topic
from tests.kit.proof import proves
from tests.kit.sinks import InFront, relay_once
from tests.kit.stream import (
    STREAM,
    SUBSCRIPTION,
    filled,
    holders,
    member_with_lease,
    more,
    short_leases,
)

FAST = Backoff(base_seconds=0.01, max_seconds=0.05)
NAMESPACE, _, NAME = STREAM.partition("/")

ADDRESS_OF_NOW: Guard = {
    "postgres": ("block_row", "block.topic,", "t.address,"),
    "mysql": ("block_row", "AS attempt, b.topic,", "AS attempt, t.address AS topic,"),
}
KNOWN_BY_ADDRESS: Guard = {
    "postgres": ("make_topic", "t.address || '//' || t.id", "t.address"),
    "mysql": ("make_topic", "CONCAT(topic, '//', created)", "topic"),
}
IDS_NOT_RAISED: Guard = {
    "postgres": ("open_history", "PERFORM raise_counters(true);", ""),
    "mysql": ("raise_counters", "IF gone_topic > COALESCE(last_topic, 0) THEN", "IF FALSE THEN"),
}


class Killed(KeyboardInterrupt):
    """The process is gone.  All else that a sink raises is a failed attempt."""


class Files(JsonlSink):
    """Small blocks, all of one size."""

    max_block_events = 10


class Dying(InFront):
    """Its process dies when a block is stored, before anybody has heard of it."""

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        channel.send_block(block)
        raise Killed


def relayed(db: ContractDatabase, folder: Path, seconds: float = 20) -> tuple[int, str]:
    """How many events a relay carried until nothing was left, and what went wrong last."""
    with closing(Files(folder)) as sink:
        result = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST).run_for(seconds)
    return result.events, result.last_error


def killed(db: ContractDatabase, folder: Path) -> None:
    """A relay has sent ten events and is gone before it could commit them."""
    member, lease = member_with_lease(db.connect(), "dead")
    with pytest.raises(Killed), closing(Dying(Files(folder))) as sink:
        relay_once(db.connect(), member, lease, sink)
    end_lease(db, "dead")


def files(folder: Path) -> dict[str, list[tuple[str, int]]]:
    """Source and sequence of each line of each file."""
    return {
        file.name: [
            (line["source"], int(line["sequence"]))
            for line in map(json.loads, file.read_bytes().splitlines())
        ]
        for file in sorted(folder.glob("[!.]*.jsonl"))
    }


def _torn(folder: Path) -> None:
    """Of the ten lines only five have come to the disk."""
    (file,) = folder.glob("[!.]*.jsonl")
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:5]))


def lines(source: str, first: int, last: int) -> list[tuple[str, int]]:
    """What a file holds."""
    return [(f"/{source}", sequence) for sequence in range(first, last + 1)]


def _made_anew(
    db: ContractDatabase, folder: Path, seconds: float = 20
) -> tuple[str, str, tuple[int, str]]:
    """Ten events of a topic were relayed, and five of another one under its name."""
    own = db.connect()
    filled(own)
    first = known_as(own, STREAM)
    assert relayed(db, folder) == (10, "")
    names.delete_topic(own, STREAM, with_subscriptions=True)
    names.create_topic(own, STREAM)
    more(own, events=5)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    return first, known_as(own, STREAM), relayed(db, folder, seconds)


@proves("F23", how="outside")
def test_a_topic_made_anew_is_another_one(db: ContractDatabase, tmp_path: Path) -> None:
    """Guard: known_as, which create_topic makes of the id; no history is opened for it."""
    first, second, result = _made_anew(db, tmp_path)
    assert result == (5, "")
    with closing(JsonlSink(tmp_path)) as sink:
        assert files(tmp_path) == {
            sink.path(first, 0).name: lines(STREAM, 1, 10),
            sink.path(second, 0).name: lines(STREAM, 1, 5),
        }
    own = db.connect()
    assert [each.history for each in histories(own)] == [1]
    assert restore_status(own) == []


@proves("F23", guard="the identity of a topic")
@pytest.mark.long_on("mysql", "mariadb")
def test_known_by_its_address_it_is_behind_the_old_one(
    db: ContractDatabase, tmp_path: Path
) -> None:
    """Mutant: it is stopped, or would write over what the old one has sent."""
    without(db, KNOWN_BY_ADDRESS)
    _, _, (events, error) = _made_anew(db, tmp_path, 3)
    assert events == 0
    assert "LogBehind" in error


def test_a_topic_made_anew_takes_nobodys_lease(db: ContractDatabase) -> None:
    """Guard: create_topic opens no history; who may operate one namespace moves no other."""
    own = db.connect()
    filled(own)
    topic(own, 1, "other/topic")
    member, lease = member_with_lease(own, "a")
    names.delete_topic(own, "other/topic")
    names.create_topic(own, "other/topic")
    assert holders(own) == {0: "a"}
    stream.commit(own, member, [(lease, 10)])


@proves("F23", how="outside")
@pytest.mark.parametrize("new_name", ["s", "a-name-that-is-longer-than-the-one-before"])
def test_a_block_is_sent_again_as_it_was(
    db: ContractDatabase, tmp_path: Path, new_name: str
) -> None:
    """Guards: the block's own address; known_as, by which the file is found again."""
    own = db.connect()
    filled(own, events=15)
    name = known_as(own, STREAM)
    killed(db, tmp_path)
    _torn(tmp_path)
    renamed = names.rename_topic(own, STREAM, new_name)
    assert known_as(own, renamed) == name
    assert relayed(db, tmp_path) == (15, "")
    with closing(JsonlSink(tmp_path)) as sink:
        place = sink.path(name, 0).name
    assert files(tmp_path) == {place: lines(STREAM, 1, 10) + lines(renamed, 11, 15)}


@proves("F23", guard="the identity of a topic")
@pytest.mark.long_on("mariadb")
def test_with_the_address_of_now_it_is_another_block(db: ContractDatabase, tmp_path: Path) -> None:
    """Mutant: the file has the block under two names."""
    without(db, ADDRESS_OF_NOW)
    own = db.connect()
    filled(own, events=15)
    killed(db, tmp_path)
    _torn(tmp_path)
    renamed = names.rename_topic(own, STREAM, "s")
    assert relayed(db, tmp_path) == (15, "")
    (found,) = files(tmp_path).values()
    assert found == lines(STREAM, 1, 5) + lines(renamed, 6, 15)


def test_what_a_consumer_knows_outlives_the_name(db: ContractDatabase) -> None:
    """Guard: require_leases goes by the id; what is gone does not count."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    stream.commit(own, member, [(lease, 10)])
    known = [replace(lease, position=10)]
    names.rename_topic(own, STREAM, "renamed")
    topic(own, 1, STREAM)
    assert stream.join(own, SUBSCRIPTION, "b", known=known).consumer == "b"
    names.delete_topic(own, f"{NAMESPACE}/renamed", with_subscriptions=True)
    assert stream.join(own, SUBSCRIPTION, "c", known=known).consumer == "c"
    assert restore_status(own) == []


def test_a_keeper_reconnects_behind_a_rename(db: ContractDatabase) -> None:
    """Guard: the same of a consumer that has lost its connection."""
    own = db.connect()
    filled(own)
    short_leases(own, 3)
    with LeaseKeeper(db.url, SUBSCRIPTION, consumer="a") as keeper:
        assert keeper.leases()
        names.rename_topic(own, STREAM, "renamed")
        keeper.doubt()
        keeper.compare(own)
        assert keeper.may_beat(time.monotonic())


def _next_id(db: ContractDatabase) -> tuple[int, int]:
    """The id of a deleted topic, and the next one once its counter was lost."""
    own = db.connect()
    topic(own, 1, STREAM)
    gone = names.describe_topic(own, STREAM).topic_id
    names.delete_topic(own, STREAM)
    db.run("DELETE FROM penstock.partitions")
    if db.engine == "postgres":
        db.run("SELECT setval('penstock.topics_id_seq', 1, false)")
    else:
        db.run("ALTER TABLE penstock.topics AUTO_INCREMENT = 1")
    reconcile(own, "a dump of the rows alone was loaded")
    return gone, names.create_topic(own, STREAM)


def test_an_id_is_never_given_twice(db: ContractDatabase) -> None:
    """Guard: open_history raises the counter above every topic that there was."""
    gone, made = _next_id(db)
    assert made > gone


def test_without_it_an_id_comes_again(db: ContractDatabase) -> None:
    """Mutant: the counter is left where a restore has put it."""
    without(db, IDS_NOT_RAISED)
    gone, made = _next_id(db)
    assert made <= gone


def _deleted(own: Any) -> None:
    names.delete_topic(own, STREAM, with_subscriptions=True)


def _renamed(own: Any) -> None:
    names.rename_topic(own, STREAM, "renamed")


@pytest.mark.parametrize("change", [_deleted, _renamed])
def test_a_tail_does_not_go_on_in_another_topic(
    db: ContractDatabase, change: Callable[[Any], None]
) -> None:
    """Guard: tail compares the ids of the partitions."""
    own = db.connect()
    filled(own, events=3)
    events = tail.tail(own, STREAM, "earliest", max_idle_seconds=0.05)
    assert [next(events).sequence for _ in range(3)] == [1, 2, 3]
    change(own)
    topic(own, 1, STREAM)
    for _ in range(4):
        put(own, "other", name=STREAM)
    drain(own)
    with pytest.raises(TopicNotFound, match="no longer"):
        next(events)
