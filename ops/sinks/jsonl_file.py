"""One file of JSON Lines: who may write it now, and what it holds of a block.

Whoever writes has the lock of the file, so it can compare and write as one step: a relay that wakes
up late finds that others have gone on, and writes nothing. The lock is that of a file beside it,
which also says what its holder is about to write. A process that is stopped in the middle of a
write keeps the lock. Others go on without it where both would write the same bytes to the same
place, and wait for it where they would not.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ops.sinks.base import RelayBlock, SinkMisconfigured, SinkUnavailable
from penstock.records import Event

#: How long to wait for the lock of another process.
LOCK_SECONDS = 2.0
_LOOK_SECONDS = 0.02
#: What is read of a file at most from the place of a block on.
_MOST_BYTES = 64 << 20
_NOTE_BYTES = 200
_NEWLINE = b"\n"


@dataclass(frozen=True, slots=True)
class Writing:
    """What the holder of a lock writes: a range, and whether each sequence of it has a line."""

    first: int
    last: int
    is_whole: bool

    @classmethod
    def of(cls, block: RelayBlock) -> Writing:
        """What a block writes."""
        first, last = block.first_sequence, block.last_sequence
        return cls(first, last, len(block.events) == last - first + 1)


class FileLock:
    """The lock of one file, for the blocks of one channel."""

    def __init__(self, path: Path, ended: threading.Event) -> None:
        self._path = path.with_name(f".{path.name}.lock")
        self._ended = ended
        self._is_kept = False

    @contextmanager
    def held(self, writing: Writing) -> Iterator[Writing | None]:
        """Hold it while something is written.  What another process writes that does not end."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            other = None if self._taken(file) else _noted(file)
            self._is_kept = other is not None
            if other is None:
                note = json.dumps([writing.first, writing.last, writing.is_whole]).encode()
                os.pwrite(file, note.ljust(_NOTE_BYTES), 0)
            yield other
            if other is None:
                os.ftruncate(file, 0)  # who has the lock next may write anything until it says what
        finally:
            os.close(file)

    def unavailable(self) -> SinkUnavailable:
        """Somebody else has it, and would write other bytes to this place."""
        return SinkUnavailable(
            f"another process has had the lock {self._path} for more than {LOCK_SECONDS:g} s",
            hint="perhaps it is stopped in the middle of a write: let it go on, or end it",
        )

    def _taken(self, file: int) -> bool:
        ends = time.monotonic() + (0.0 if self._is_kept else LOCK_SECONDS)
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            if time.monotonic() >= ends:
                return False
            if self._ended.wait(_LOOK_SECONDS):
                raise SinkUnavailable("the relay has ended the call")


def _noted(file: int) -> Writing:
    """What the holder has said.  One that has said nothing yet may write anything."""
    try:
        first, last, is_whole = json.loads(os.pread(file, _NOTE_BYTES, 0))
        return Writing(int(first), int(last), bool(is_whole))
    except (ValueError, TypeError):
        return Writing(0, 0, False)


@dataclass(frozen=True, slots=True)
class Place:
    """What stands where a block belongs."""

    #: The last sequence of the block that is there, behind whole lines only, and their bytes.
    sequence: int
    lines: bytes
    #: What comes after them.
    after: bytes

    @classmethod
    def of(cls, there: bytes, first: int, last: int) -> Place:
        """From the place of a range on."""
        sequence, length = first - 1, 0
        for line in whole_lines(there):
            found = sequence_of(line)
            if found is None or not sequence < found <= last:
                break
            sequence, length = found, length + len(line)
        return cls(sequence, there[:length], there[length:])

    def is_passed(self, last: int) -> bool:
        """Whether something stands there that comes after a sequence: others have gone on."""
        return any((sequence_of(line) or 0) > last for line in whole_lines(self.after))

    def is_torn(self, rest: bytes) -> bool:
        """Whether what comes after is what a write that broke off has left.

        It is no longer than what is written over it; or it has only lines of ours, a piece of one,
        and the zeros of pages that a power failure has lost.
        """
        if len(self.after) <= len(rest):
            return True
        lines = whole_lines(self.after)
        return all(sequence_of(line) is not None or b"\0" in line for line in lines)


def whole_lines(text: bytes) -> Iterator[bytes]:
    """Its lines, without one whose end is missing."""
    pieces = text.split(_NEWLINE)
    return (piece + _NEWLINE for piece in pieces[:-1])


def sequence_of(line: bytes) -> int | None:
    """The sequence of a line.  None when it is none of ours, or damaged."""
    try:
        return int(json.loads(line)["sequence"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def is_settled(other: Writing, block: RelayBlock, there: bytes | None) -> bool:
    """Whether a holder that goes on later does no harm to a block that is written without the lock.

    Its bytes are those of this block, or they are all in the file already, before this block.
    ``there`` is what the file has from the holder's place on.
    """
    own = Writing.of(block)
    if not other.is_whole:
        return False
    if other == own:
        return True
    if there is None or other.last >= own.first:
        return False
    found = Place.of(there, other.first, other.last)
    lines = found.lines.count(_NEWLINE)
    return lines == other.last - other.first + 1


def require_own(path: Path, there: bytes, block: RelayBlock) -> None:
    """SinkMisconfigured when a line is a different event under one of the block's sequences.

    After a power failure, a line of a torn block is either not whole or the same event.
    """
    ids = {event.sequence: str(event.event_id) for event in block.events} if there else {}
    for line in whole_lines(there):
        found = sequence_of(line)
        if found in ids and json.loads(line).get("id") != ids[found]:
            raise _other_events(path, block)


def require_gapless(path: Path, place: Place, block: RelayBlock) -> None:
    """SinkMisconfigured when an event is missing before others of its block.

    A write that broke off leaves the first lines of a block. So these were written from another
    position: the relay was put back, or another relay writes into the same directory. Where rules
    leave something out, a block that was open already may have been written by other rules.
    """
    if block.reopened and (block.passed or {}).get("", 0) > 0:
        return
    found = {sequence_of(line) for line in whole_lines(place.lines)}
    for event in block.events:
        if event.sequence < place.sequence and event.sequence not in found:
            raise SinkMisconfigured(
                f"{path} has sequence {place.sequence} but not {event.sequence}, which belongs "
                "before it",
                hint="the relay was put back to an earlier position, or another relay writes into "
                "this directory: give each relay a directory of its own, or move the file away, "
                "and the relay writes a new one from its position on. If a filter was taken away "
                "just now, put it back until the relay has gone on",
            )


def rest_of(place: Place, events: Sequence[Event], lines: Sequence[bytes]) -> bytes:
    """The lines of a block that the file does not have."""
    both = zip(events, lines, strict=True)
    return b"".join(line for event, line in both if event.sequence > place.sequence)


def read_from(file: int, offset: int) -> bytes:
    """What a file has from an offset on."""
    return read(file, offset, min(max(0, os.fstat(file).st_size - offset), _MOST_BYTES))


def read(file: int, offset: int, length: int) -> bytes:
    """So many bytes, or what there is of them."""
    pieces: list[bytes] = []
    while length > 0:
        piece = os.pread(file, length, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return b"".join(pieces)


def write(file: int, offset: int, lines: bytes) -> None:
    """All of it."""
    view = memoryview(lines)
    while view:
        written = os.pwrite(file, view, offset)
        offset += written
        view = view[written:]


def _other_events(path: Path, block: RelayBlock) -> SinkMisconfigured:
    return SinkMisconfigured(
        f"{path} holds other events under the sequences {block.first_sequence} to "
        f"{block.last_sequence}",
        hint="the database was restored to an older state: open the next history by "
        "`penstock restore reconcile`, and the relay goes on in a new file",
    )


def other_lines(path: Path, block: RelayBlock) -> SinkMisconfigured:
    """There is more than a torn block where the block belongs."""
    return SinkMisconfigured(
        f"{path} holds other lines where {block.first_sequence} to {block.last_sequence} belong",
        hint="if another relay has gone on, nothing is to be done; if another program has written "
        "there, move the file away, and the relay writes a new one",
    )
