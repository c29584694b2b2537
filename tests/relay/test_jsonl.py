"""The JSON Lines sink alone: what the file holds after every kind of interruption."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ops.sinks import jsonl, jsonl_file
from ops.sinks.base import EventRefused, SinkMisconfigured, SinkUnavailable
from ops.sinks.cloudevents import to_json
from ops.sinks.jsonl import JsonlSink, end_before, file_name
from penstock.records import Event
from tests.kit.proof import proves
from tests.kit.sinks import Alone
from tests.relay.blocks import TOPIC, block, event

ROOT = Path(__file__).resolve().parents[2]


def thin(*sequences: int) -> tuple[Event, ...]:
    """Some events."""
    return tuple(event(each) for each in sequences)


def lines(first: int, last: int) -> bytes:
    """What a range looks like in the file."""
    return b"".join(to_json(event(sequence)) + b"\n" for sequence in range(first, last + 1))


@pytest.fixture
def sink(tmp_path: Path) -> Alone:
    """A sink on a directory that does not exist yet."""
    sink = Alone(JsonlSink(tmp_path / "out"))
    sink.preflight(TOPIC, 1)
    return sink


@pytest.fixture
def path(sink: Alone) -> Path:
    """The file of partition 0."""
    return sink.path(TOPIC, 0)


def test_blocks_follow_each_other(sink: Alone, path: Path) -> None:
    sink.send_block(block(1, 3))
    sink.send_block(block(4, 4))
    Alone(JsonlSink(sink.directory)).send_block(block(5, 9))
    assert path.read_bytes() == lines(1, 9)


def test_a_block_sent_again_changes_nothing(sink: Alone, path: Path) -> None:
    for other in (sink, Alone(JsonlSink(sink.directory))):
        other.send_block(block(1, 3))
        other.send_block(block(4, 6, reopened=True))
    Alone(JsonlSink(sink.directory)).send_block(block(1, 3, reopened=True))
    assert path.read_bytes() == lines(1, 6)


@pytest.mark.parametrize("seed", range(5))
def test_a_torn_tail_of_any_length_is_written_over(sink: Alone, path: Path, seed: int) -> None:
    rng = random.Random(seed)
    before, whole = lines(1, 3), lines(4, 40)
    for _ in range(20):
        path.write_bytes(before + whole[: rng.randrange(len(whole) + 1)])
        Alone(JsonlSink(sink.directory)).send_block(block(4, 40, reopened=True))
        assert path.read_bytes() == before + whole


def test_a_hole_that_a_power_failure_left_is_written_over(sink: Alone, path: Path) -> None:
    damaged = bytearray(lines(1, 2000))
    start = len(lines(1, 1200))
    damaged[start : start + 40_000] = bytes(40_000)
    path.write_bytes(damaged)
    sink.send_block(block(1001, 2000, reopened=True))
    assert path.read_bytes() == lines(1, 2000)


def test_a_relay_that_wakes_up_late_does_no_harm(sink: Alone, path: Path) -> None:
    sleeper = Alone(JsonlSink(sink.directory))
    sleeper.send_block(block(1, 3))
    sink.send_block(block(4, 6))
    sink.send_block(block(7, 9))
    sleeper.send_block(block(4, 6))
    assert path.read_bytes() == lines(1, 9)


def test_another_subscription_cut_elsewhere_writes_the_same_file(sink: Alone, path: Path) -> None:
    sink.send_block(block(1, 10))
    other = Alone(JsonlSink(sink.directory))
    other.send_block(block(1, 4))
    other.send_block(block(5, 12))
    assert path.read_bytes() == lines(1, 12)


def test_dead_letters_leave_no_line_and_no_confusion(sink: Alone, path: Path) -> None:
    thinned = tuple(event(sequence) for sequence in (4, 5))
    sink.send_block(block(1, 3))
    for reopened in (False, True):
        Alone(JsonlSink(sink.directory)).send_block(block(4, 6, reopened=reopened, events=thinned))
    sink.send_block(block(7, 8))
    sink.send_block(block(9, 9, events=()))
    assert path.read_bytes() == lines(1, 5) + lines(7, 8)


def test_lines_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    long = [event(n, payload=json.dumps("x" * 70_000 * n).encode()) for n in range(1, 5)]
    sink = Alone(JsonlSink(tmp_path))
    sink.send_block(block(1, 2, events=tuple(long[:2])))
    Alone(JsonlSink(tmp_path)).send_block(block(3, 4, events=tuple(long[2:])))
    Alone(JsonlSink(tmp_path)).send_block(block(2, 2, events=(long[1],), reopened=True))
    found = sink.path(TOPIC, 0).read_bytes()
    assert found == b"".join(to_json(each) + b"\n" for each in long)


def test_end_before_every_sequence(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(lines(1, 300))
    file = os.open(path, os.O_RDONLY)
    try:
        for sequence in (1, 2, 150, 300, 301, 999):
            assert end_before(file, sequence) == len(lines(1, min(sequence - 1, 300)))
    finally:
        os.close(file)


def test_other_lines_are_not_overwritten(sink: Alone, path: Path) -> None:
    path.write_bytes(lines(5, 9))
    with pytest.raises(SinkMisconfigured, match="other lines"):
        sink.send_block(block(1, 3))
    assert path.read_bytes() == lines(5, 9)


def test_a_new_history_has_its_own_file(sink: Alone, path: Path) -> None:
    sink.send_block(block(1, 3))
    sink.send_block(block(2, 3, history=2))
    assert path.read_bytes() == lines(1, 3)
    assert sink.path(TOPIC, 0, 2).read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("topic", ["../../etc/passwd", "a/b", ".", "ü" * 300, "a%2Fb", "~/x\0y"])
def test_no_topic_leaves_the_directory(tmp_path: Path, topic: str) -> None:
    path = JsonlSink(tmp_path).path(topic, 65_535, 12)
    assert path.parent == tmp_path
    assert len(path.name.encode()) < 255


def test_file_names_differ() -> None:
    topics = ["a/b", "a%2Fb", "a.b", "a", "x" * 200, "x" * 201]
    assert len({file_name(topic, 0) for topic in topics}) == len(topics)


def test_an_event_that_cannot_be_encoded_is_refused(sink: Alone) -> None:
    bad = (event(1), event(2, type="\ud800"))
    with pytest.raises(EventRefused) as refused:
        sink.send_block(block(1, 2, events=bad))
    assert refused.value.sequence == 2


def test_a_directory_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkMisconfigured, match="cannot be made"):
        JsonlSink(tmp_path / "file" / "out").preflight(TOPIC, 1)


def test_no_space_is_tried_again_later(sink: Alone, path: Path) -> None:
    sink.send_block(block(1, 3))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(lines(1, 5)) + 7, limits[1]))
    try:
        with pytest.raises(SinkUnavailable, match="File too large"):
            sink.send_block(block(4, 9))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == lines(1, 9)[: len(lines(1, 5)) + 7]
    sink.send_block(block(4, 9, reopened=True))
    assert path.read_bytes() == lines(1, 9)


SLEEPER = """
import os, signal, sys
from ops.sinks.jsonl import JsonlSink
from tests.kit.sinks import Alone
from tests.relay.blocks import block

whole = os.pwrite

def half(file, data, offset):
    if len(data) < 1000:
        return whole(file, data, offset)
    os.pwrite = whole
    written = whole(file, data[: len(data) // 2], offset)
    print("inside", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    return written

os.pwrite = half
Alone(JsonlSink(sys.argv[1])).send_block(block(4, 400))
"""


@proves("a file has one writer")
def test_a_relay_that_is_paused_inside_its_write_holds_nobody_up(
    sink: Alone, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl_file, "LOCK_SECONDS", 0.05)
    sink.send_block(block(1, 3))
    command = [sys.executable, "-c", SLEEPER, str(sink.directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as sleeper:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == b"inside\n"
        os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
        Alone(JsonlSink(sink.directory)).send_block(block(4, 400, reopened=True))
        Alone(JsonlSink(sink.directory)).send_block(block(401, 500))
        sleeper.send_signal(signal.SIGCONT)
        assert sleeper.wait(timeout=30) == 0
    assert path.read_bytes() == lines(1, 500)


@proves("a file has one writer")
def test_a_block_that_was_written_and_then_lost_events_goes_on(sink: Alone, path: Path) -> None:
    """Guard: Place.of. What is there was sent, also what was given up since."""
    sink.send_block(block(1, 5))
    for events in (thin(1, 2, 4, 5), thin(1, 2), ()):
        Alone(JsonlSink(sink.directory)).send_block(block(1, 5, reopened=True, events=events))
    sink.send_block(block(6, 8))
    assert path.read_bytes() == lines(1, 8)


def test_a_block_whose_rules_have_changed_goes_on(sink: Alone, path: Path) -> None:
    """It was open under rules that left other events out: those that are there stay."""
    passed = {"": 1}
    sink.send_block(block(1, 3, events=thin(1), passed={"": 0}))
    sink.send_block(block(4, 9, events=thin(4, 6), passed=passed))
    Alone(JsonlSink(sink.directory)).send_block(block(4, 9, reopened=True, passed=passed))
    sink.send_block(block(10, 11))
    assert path.read_bytes() == lines(1, 1) + lines(4, 4) + lines(6, 11)


@pytest.mark.parametrize("last", [6, 4])
def test_a_relay_that_was_put_back_loses_nothing_in_silence(
    sink: Alone, path: Path, last: int
) -> None:
    """Another relay began at 3, or this one did and was put back.  Guard: require_gapless."""
    sink.send_block(block(3, 6))
    before = path.read_bytes()
    for changes in ({}, {"reopened": True}, {"reopened": True, "passed": {"": 0}}):
        with pytest.raises(SinkMisconfigured, match="but not 1, which belongs before it"):
            Alone(JsonlSink(sink.directory)).send_block(block(1, last, **changes))
    assert path.read_bytes() == before


def test_without_the_look_they_would_be_lost(
    sink: Alone, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: what stands in a block's place counts as the block."""
    monkeypatch.setattr(jsonl, "require_gapless", lambda *_: None)
    sink.send_block(block(3, 6))
    Alone(JsonlSink(sink.directory)).send_block(block(1, 6))
    assert path.read_bytes() == lines(3, 6)


def test_what_was_torn_is_gone_when_the_block_has_less_now(sink: Alone, path: Path) -> None:
    """Guard: ftruncate, under the lock. Else what is longer than the next block would stay."""
    sink.send_block(block(1, 3))
    path.write_bytes(lines(1, 8) + to_json(event(9, payload=b'"%s"' % (b"x" * 999)))[:-3])
    Alone(JsonlSink(sink.directory)).send_block(block(4, 9, reopened=True, events=thin(4)))
    Alone(JsonlSink(sink.directory)).send_block(block(10, 10))
    assert path.read_bytes() == lines(1, 8) + lines(10, 10)


@proves("a file has one writer")
def test_a_late_relay_overwrites_nothing(sink: Alone, path: Path) -> None:
    """Its block was given up whole meanwhile. Guard: Place.is_passed."""
    sleeper = Alone(JsonlSink(sink.directory))
    sleeper.send_block(block(1, 3))
    sink.send_block(block(7, 7))
    with pytest.raises(SinkMisconfigured, match="another relay has gone on"):
        sleeper.send_block(block(4, 6))
    assert path.read_bytes() == lines(1, 3) + lines(7, 7)


@proves("a file has one writer", guard="Place.is_passed")
def test_without_the_comparison_it_would(
    sink: Alone, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl_file.Place, "is_passed", lambda *_: False)
    sink.send_block(block(1, 3))
    Alone(JsonlSink(sink.directory)).send_block(block(7, 7))
    sink.send_block(block(4, 6))
    assert path.read_bytes() == lines(1, 6)


def _with_a_sleeper(sink: Alone, path: Path) -> None:
    """It is paused inside its write; its block is given up whole, and the next one is sent."""
    sink.send_block(block(1, 3))
    command = [sys.executable, "-c", SLEEPER, str(sink.directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as sleeper:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == b"inside\n"
        os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            Alone(JsonlSink(sink.directory)).send_block(block(401, 402))
        finally:
            sleeper.send_signal(signal.SIGCONT)
            assert sleeper.wait(timeout=30) == 0


@proves("a file has one writer")
def test_nobody_writes_where_one_who_is_paused_inside_its_write_goes_on(
    sink: Alone, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the lock, and is_settled."""
    monkeypatch.setattr(jsonl_file, "LOCK_SECONDS", 0.05)
    with pytest.raises(SinkUnavailable, match="let it go on, or end it"):
        _with_a_sleeper(sink, path)
    sink.send_block(block(401, 402))
    assert path.read_bytes() == lines(1, 402)


@proves("a file has one writer", guard="the lock")
def test_without_the_lock_events_would_be_lost(
    sink: Alone, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl_file.FileLock, "_taken", lambda *_: True)
    _with_a_sleeper(sink, path)
    assert lines(401, 401) not in path.read_bytes()
