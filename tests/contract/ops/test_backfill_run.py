"""Runners of backfill requests: killed, paused, several at once; each range is brought once."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ops.backfill import requests as requests
from ops.backfill.relay_again import place_of
from ops.backfill.requests import REHYDRATE, RELAY, Window
from ops.backfill.running import BackfillRun, run_backfill, run_due
from ops.backfill.workers import workers
from ops.sinks.base import Channel, EventRefused, RelayBlock
from ops.sinks.cloudevents import to_json
from ops.sinks.jsonl import JsonlSink
from penstock import log
from penstock.archive.copies import epoch_folder
from penstock.archive.format import CHECKSUM_KEY, FILE_SCHEMA
from penstock.errors import BelowLowSequence
from penstock.records import Event
from tests.contract.databases import ContractDatabase
from tests.kit.backfill import (
    AFTER,
    BEFORE,
    EPOCHS,
    EVENTS,
    PLACES,
    WITHIN,
    filled,
    places,
    state_of,
    target,
    watched,
)
from tests.kit.log import known_as
from tests.kit.proof import proves
from tests.kit.sinks import InFront
from tests.kit.stream import STREAM
from tests.servers import DATABASES

ALL = EPOCHS * EVENTS
PAST = "2020-01-01 00:00:00"
ROOT = Path(__file__).parents[3]


def _ask(connection: Any, folder: Path, kind: str, **window: Any) -> int:
    address = f"jsonl:{folder / 'sink'}" if kind == RELAY else ""
    asked = requests.request_backfill(connection, STREAM, kind, address, Window(**window))
    return asked.request


def _sent(connection: Any, folder: Path, request: int, partition: int = 0) -> bytes:
    """What lies in the sink."""
    sink = JsonlSink(folder / "sink" / place_of(connection, request))
    return sink.path(known_as(connection, STREAM), partition).read_bytes()


def _lines(events: list[Event]) -> bytes:
    return b"".join(to_json(each) + b"\n" for each in events)


def _require_brought(
    connection: Any, folder: Path, kind: str, request: int, events: list[Event]
) -> None:
    """All of the log, once, byte for byte."""
    assert state_of(connection, request) == ("done", EPOCHS, ALL)
    if kind == RELAY:
        assert _sent(connection, folder, request) == _lines(events)
    else:
        assert log.fetch(connection, STREAM, 0, 1, ALL) == events


def _again(db: ContractDatabase) -> None:
    """As if the killed runner had been silent for as long as it may be, and pauses were over."""
    db.run("UPDATE penstock.backfill_requests SET deadline = %(past)s, not_before = %(past)s",
           {"past": PAST})  # fmt: skip


@pytest.mark.parametrize("dropped", [True, False], ids=["cold", "hot"])
def test_a_window_is_sent_again(db: ContractDatabase, tmp_path: Path, dropped: bool) -> None:
    """From the archive and from the database the same bytes; exactly the window; in its place."""
    own = db.connect()
    events = filled(own, tmp_path, dropped=dropped)
    asked = _ask(own, tmp_path, RELAY, from_sequence=5, to_sequence=40)
    (result,) = run_due(db.url, workers(places(tmp_path)))
    assert result == BackfillRun(asked, RELAY, 1, "done", 36)
    assert _sent(own, tmp_path, asked) == _lines(events[4:40])
    again = _ask(own, tmp_path, RELAY, from_sequence=40, to_sequence=40)
    assert run_due(db.url, workers(places(tmp_path)))
    assert _sent(own, tmp_path, again) == _lines(events[39:40])


def test_what_was_dropped_comes_back(db: ContractDatabase, tmp_path: Path) -> None:
    own = db.connect()
    events = filled(own, tmp_path, partitions=2, dropped=True)
    with pytest.raises(BelowLowSequence):
        log.fetch(own, STREAM, 0, 1, 1)
    dry = requests.request_backfill(own, STREAM, REHYDRATE, dry_run=True)
    asked = _ask(own, tmp_path, REHYDRATE)
    (result,) = run_due(db.url, workers(places(tmp_path)))
    assert (result.state, result.done_events) == ("done", dry.total_events)
    assert state_of(own, asked) == ("done", dry.units, dry.total_events)
    assert log.fetch(own, STREAM, 0, 1, ALL) + log.fetch(own, STREAM, 1, 1, ALL) == events


#: Every day each is on one engine, and each engine has both kinds.
KILLS = [
    pytest.param(
        kind, place, marks=pytest.mark.long_on(*(each for each in DATABASES if each != engine))
    )
    for (kind, place), engine in zip(
        product((REHYDRATE, RELAY), PLACES), (*DATABASES, *reversed(DATABASES)), strict=True
    )
]


@proves("a range is brought once")
@pytest.mark.parametrize(("kind", "place"), KILLS)
def test_a_killed_runner_repeats_one_range_at_most(
    db: ContractDatabase, tmp_path: Path, kind: str, place: str
) -> None:
    """SIGKILL at 40 %: before, within and after a range."""
    own = db.connect()
    events = filled(own, tmp_path, dropped=True)
    asked = _ask(own, tmp_path, kind)
    assert _process(db, tmp_path, place, EPOCHS * 4 // 10).wait(timeout=120) == -9
    state, done, _ = state_of(own, asked)
    assert (state, done) == ("running", 4 if place == AFTER else 3)
    assert requests.claim_backfill(own, "early") is None
    _again(db)
    assert _process(db, tmp_path).wait(timeout=120) == 0
    _require_brought(own, tmp_path, kind, asked, events)
    begun = (tmp_path / "runner").read_bytes().count(b"begun")
    assert begun == (EPOCHS if place == AFTER else EPOCHS + 1)


def _process(
    db: ContractDatabase, folder: Path, place: str = "", at: int = 0, name: str = "runner"
) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "tests.kit.backfill"]
    return subprocess.Popen([*program, db.url, str(folder), name, place, str(at)], cwd=ROOT)


@proves("a range is brought once")
@pytest.mark.long_on("mysql", "mariadb")
def test_two_runners_at_once_do_each_range_once(db: ContractDatabase, tmp_path: Path) -> None:
    """Processes, and six requests of both kinds; each is one runner's from its begin to its end."""
    own = db.connect()
    events = filled(own, tmp_path, partitions=3, dropped=True)
    asked = {
        (kind, part): _ask(own, tmp_path, kind, partition=part)
        for kind in (RELAY, REHYDRATE)
        for part in range(3)
    }
    runners = [_process(db, tmp_path, name=name) for name in ("first", "second")]
    assert [each.wait(timeout=240) for each in runners] == [0, 0]
    begun = [(tmp_path / name).read_bytes().count(b"begun") for name in ("first", "second")]
    assert sum(begun) == 6 * EPOCHS
    for (kind, part), request in asked.items():
        assert state_of(own, request) == ("done", EPOCHS, ALL)
        assert {each.done_by for each in requests.ranges(own, request)} == {1}
        if kind == RELAY:
            mine = events[part * ALL : (part + 1) * ALL]
            assert _sent(own, tmp_path, request, part) == _lines(mine)


@pytest.mark.parametrize("kind", [REHYDRATE, RELAY])
def test_a_runner_that_was_paused_changes_nothing(
    db: ContractDatabase, tmp_path: Path, kind: str
) -> None:
    """It wakes up within a range when another runner has done everything."""
    own = db.connect()
    events = filled(own, tmp_path, dropped=True)
    asked = _ask(own, tmp_path, kind)
    paused, go_on = threading.Event(), threading.Event()

    def pause(place: str, begun: int) -> None:
        if (place, begun) == (BEFORE, 4):
            paused.set()
            assert go_on.wait(60)

    found: list[BackfillRun | None] = []
    slow = threading.Thread(
        target=lambda: found.append(run_backfill(db.url, watched(tmp_path, pause), run="slow"))
    )
    slow.start()
    assert paused.wait(60)
    _again(db)
    (result,) = run_due(db.url, workers(places(tmp_path)), run="fast")
    assert (result.state, result.attempt) == ("done", 2)
    go_on.set()
    slow.join(60)
    (lost,) = found
    assert lost is not None
    assert (lost.state, lost.attempt) == ("lost", 1)
    _require_brought(own, tmp_path, kind, asked, events)
    assert [each.done_by for each in requests.ranges(own, asked)] == [1] * 3 + [2] * 7


def test_a_cancelled_request_stops_within_a_range(db: ContractDatabase, tmp_path: Path) -> None:
    own = db.connect()
    filled(own, tmp_path, dropped=True)
    asked = _ask(own, tmp_path, REHYDRATE)

    def cancel(place: str, begun: int) -> None:
        if (place, begun) == (BEFORE, 3):
            assert requests.cancel(own, asked)

    (result,) = run_due(db.url, watched(tmp_path, cancel))
    assert result.state == "lost"
    assert state_of(own, asked) == ("cancelled", 2, 2 * EVENTS)
    with pytest.raises(BelowLowSequence):
        log.fetch(own, STREAM, 0, 2 * EVENTS + 1, 1)


def test_one_damaged_copy_stops_no_other(db: ContractDatabase, tmp_path: Path) -> None:
    """The attempt fails and says which; when the copy is mended, the next one brings the rest.

    The file says of itself that it is whole. Guard: the database compares it with the seal.
    """
    own = db.connect()
    events = filled(own, tmp_path, dropped=True)
    asked = _ask(own, tmp_path, REHYDRATE)
    folder = epoch_folder(target(tmp_path), known_as(own, STREAM), (0, 5))
    (path,) = folder.glob("*.parquet")
    whole = path.read_bytes()
    _with_one_byte_more(path)
    (result,) = run_due(db.url, workers(places(tmp_path)))
    assert (result.state, result.done_events) == ("waiting", 9 * EVENTS)
    assert "partition 0, 29 to 35" in result.error
    path.write_bytes(whole)
    _again(db)
    (result,) = run_due(db.url, workers(places(tmp_path)))
    assert (result.state, result.attempt) == ("done", 2)
    _require_brought(own, tmp_path, REHYDRATE, asked, events)


def _with_one_byte_more(path: Path) -> None:
    table = pq.read_table(path)
    metadata = pq.read_metadata(path).metadata or {}
    payloads: list[Any] = table.column("payload").to_pylist()
    changed = pa.array([*payloads[:-1], payloads[-1] + b"!"], pa.binary())
    index = table.schema.get_field_index("payload")
    with pq.ParquetWriter(path, FILE_SCHEMA) as writer:
        writer.write_table(table.set_column(index, FILE_SCHEMA.field(index), changed))
        writer.add_key_value_metadata({CHECKSUM_KEY: metadata[CHECKSUM_KEY.encode()].decode()})


def test_a_sink_that_fails_ends_the_attempt(db: ContractDatabase, tmp_path: Path) -> None:
    """Nothing later is sent before it; the next attempt goes on where it was."""
    own = db.connect()
    events = filled(own, tmp_path, dropped=False)
    asked = _ask(own, tmp_path, RELAY)
    (tmp_path / "sink").write_text("not a folder")
    (result,) = run_due(db.url, workers(places(tmp_path)))
    assert result.state == "waiting"
    assert "SinkMisconfigured" in result.error
    (tmp_path / "sink").unlink()
    _again(db)
    run_due(db.url, workers(places(tmp_path)))
    _require_brought(own, tmp_path, RELAY, asked, events)


class Choosy(InFront):
    """It never takes one event of partition 0."""

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        """All but that one."""
        if block.partition == 0 and block.first_sequence <= 10 <= block.last_sequence:
            raise EventRefused(10, "never")
        channel.send_block(block)


def test_an_event_that_the_sink_refuses_holds_its_partition_alone(
    db: ContractDatabase, tmp_path: Path
) -> None:
    """What comes after it is not sent before it. Guard: the partitions that RelayAgain holds."""
    own = db.connect()
    events = filled(own, tmp_path, partitions=2, dropped=False)
    asked = _ask(own, tmp_path, RELAY)
    choosy = dataclasses.replace(
        places(tmp_path), sink=lambda address, beside: Choosy(JsonlSink(tmp_path / "sink" / beside))
    )
    (result,) = run_due(db.url, workers(choosy))
    assert (result.state, result.done_events) == ("waiting", EVENTS + ALL)
    assert "refused the event of sequence 10" in result.error
    assert _sent(own, tmp_path, asked) == _lines(events[:EVENTS])
    assert _sent(own, tmp_path, asked, 1) == _lines(events[ALL:])


def test_a_runner_says_that_it_is_alive(db: ContractDatabase, tmp_path: Path) -> None:
    """A range that takes longer than the lease keeps its request. Guard: KeepAlive's thread."""
    own = db.connect()
    filled(own, tmp_path, dropped=True)
    asked = _ask(own, tmp_path, REHYDRATE)
    seen: list[Any] = []

    def long(place: str, begun: int) -> None:
        if (place, begun) == (BEFORE, 1):
            deadline = _deadline(db, asked)
            extended = threading.Event()
            for _ in range(600):
                if extended.wait(0.05) or _deadline(db, asked) > deadline:
                    break
            seen.append(_deadline(db, asked) > deadline)

    result = run_backfill(db.url, watched(tmp_path, long), lease_seconds=1)
    assert result is not None
    assert (result.state, seen) == ("done", [True])


def _deadline(db: ContractDatabase, request: int) -> Any:
    ((deadline,),) = db.run(
        "SELECT deadline FROM penstock.backfill_requests WHERE id = %(id)s", {"id": request}
    )
    return deadline


def test_within_is_within(db: ContractDatabase, tmp_path: Path) -> None:
    """The kit's own: a range has a place within it, so the kills are where they say."""
    own = db.connect()
    filled(own, tmp_path, dropped=True)
    for kind in (REHYDRATE, RELAY):
        _ask(own, tmp_path, kind)
    called: list[str] = []
    run_due(db.url, watched(tmp_path, lambda place, begun: called.append(place)))
    assert called.count(WITHIN) >= 2 * EPOCHS
