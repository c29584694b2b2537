"""CloudEvents JSON Lines in files, exactly once over kills, pauses and power failures.

There is one file per topic (under its permanent name), partition and history. What makes it exact:

* an event's line is a function of the event alone (`ops.sinks.cloudevents.to_json`);
* everything before a block is complete and on the disk before the block is opened, so the place
  where a block begins is the end of the last whole line with a smaller sequence, whoever looks
  and whenever;
* under the lock of the file (`ops.sinks.jsonl_file`), a relay compares what is at that place with
  the block, and writes the lines that are not there yet.

A relay that was killed leaves a torn tail: a prefix of the block. Its successor writes over it.
Lines of the block that are there stay, also those of events that were given up since. A relay that
was paused wakes up, finds that others have gone on, and writes nothing. After a power failure a
torn block can have holes, so whole lines are compared. It flushes even when nothing is missing,
because the first writer may have died before its fsync.

A reader that follows the file while it grows takes whole lines only.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote

from ops.sinks.base import RelayBlock, SinkLease, SinkMisconfigured, SinkUnavailable, encoded
from ops.sinks.cloudevents import to_json
from ops.sinks.jsonl_file import (
    FileLock,
    Place,
    Writing,
    is_settled,
    other_lines,
    read,
    read_from,
    require_gapless,
    require_own,
    rest_of,
    sequence_of,
    write,
)
from penstock.errors import ConfigurationError
from penstock.log.restores import Seen

_CHUNK = 1 << 16
_LONGEST_STEM = 150
_MIB = 1 << 20


@dataclass(slots=True)
class _End:
    """Where the last block of a file ended, so that the next one need not search for its place."""

    path: Path
    inode: int
    sequence: int
    offset: int


class JsonlSink:
    """Writes each partition to its own file under a directory."""

    name = "jsonl"
    max_block_events = 10_000
    max_block_bytes = 8 * _MIB

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def path(self, known_as: str, partition: int, history: int = 1) -> Path:
        """The file of a partition.

        After a restore that lost events, it is that of the new history.
        """
        return self.directory / file_name(known_as, partition, history)

    def preflight(self, topic: str, partitions: int) -> None:
        """Check that the directory can be created and written."""
        try:
            _make_directory(self.directory)
        except OSError as error:
            raise SinkMisconfigured(
                f"the directory {self.directory} cannot be made ({error.strerror})",
                hint="name another directory or give the relay the right to write there",
            ) from error
        if not os.access(self.directory, os.W_OK | os.X_OK):
            raise SinkMisconfigured(
                f"the directory {self.directory} cannot be written",
                hint="give the relay the right to write there",
            )

    def open(self, lease: SinkLease) -> JsonlChannel:
        """A channel; it holds no file open between two blocks."""
        return JsonlChannel(self, lease)

    def close(self) -> None:
        """Nothing is held open."""


class JsonlChannel:
    """The files of one partition."""

    def __init__(self, sink: JsonlSink, lease: SinkLease) -> None:
        self._sink = sink
        self._lease = lease
        self._end: _End | None = None
        self._ended = threading.Event()
        self._lock: FileLock | None = None
        self._locked: Path | None = None

    def seen(self) -> Seen | None:
        """The last whole line of the newest history."""
        directory, known_as = self._sink.directory, self._lease.known_as
        partition = self._lease.partition
        first = file_name(known_as, partition)
        stem = first.removesuffix(".jsonl")
        try:
            names = os.listdir(directory) if directory.is_dir() else []
            histories = [1] if first in names else []
            histories += [int(found) for name in names if (found := _history(name, stem))]
            for history in sorted(histories, reverse=True):
                sequence = _last_sequence(self._sink.path(known_as, partition, history))
                if sequence is not None:
                    return Seen(sequence, history)
        except OSError as error:
            raise _unreadable(directory, error) from error
        return None

    def send_block(self, block: RelayBlock) -> None:
        """Write the block's lines to their place and flush them to the disk."""
        if not block.events:
            return
        lines = [line + b"\n" for line in encoded(block.events, to_json)]
        path = self._sink.path(block.known_as, block.partition, block.history)
        if self._lock is None or self._locked != path:
            self._lock, self._locked = FileLock(path, self._ended), path
        try:
            _make_directory(path.parent)
            with self._lock.held(Writing.of(block)) as other:
                self._store(path, block, lines, other)
        except OSError as error:
            raise _unavailable(path, error) from error

    def close(self) -> None:
        """Nothing is held open between two blocks."""

    def abort(self) -> None:
        """Wait for the lock no longer.  A call of the file system cannot be ended."""
        self._ended.set()

    def _store(
        self, path: Path, block: RelayBlock, lines: Sequence[bytes], other: Writing | None
    ) -> None:
        """Compare what the file has with the block, and write the rest.

        With ``other`` another process has the lock, and this is done only if it can do no harm.
        """
        file = _open(path)
        try:
            if other is not None and not is_settled(other, block, _there(file, other)):
                assert self._lock is not None
                raise self._lock.unavailable()
            offset = self._place(file, path, block)
            there = read_from(file, offset)
            require_own(path, there, block)
            place = Place.of(there, block.first_sequence, block.last_sequence)
            require_gapless(path, place, block)
            rest = rest_of(place, block.events, lines)
            is_passed = place.is_passed(block.last_sequence)
            if rest and (is_passed or not place.is_torn(rest)):
                raise other_lines(path, block)
            end = offset + len(place.lines) + len(rest)
            if not is_passed:
                if rest and len(place.after) > len(rest):
                    if other is not None:
                        raise other_lines(path, block)
                    os.ftruncate(file, end)
                # Written also when all of it is there: after an fsync that failed, only new pages
                # are flushed.
                write(file, offset, place.lines + rest)
            os.fsync(file)
            inode = os.fstat(file).st_ino
        finally:
            os.close(file)
        self._end = _End(path, inode, block.last_sequence, end)

    def _place(self, file: int, path: Path, block: RelayBlock) -> int:
        known = self._end
        if known is not None and (known.path, known.sequence + 1) == (path, block.first_sequence):
            status = os.fstat(file)
            if (status.st_ino, status.st_size) == (known.inode, known.offset):
                return known.offset
        return end_before(file, block.first_sequence)


def _there(file: int, other: Writing) -> bytes:
    return read_from(file, end_before(file, other.first))


def open_sink(parts: SplitResult, *, environ: Mapping[str, str], beside: str) -> JsonlSink:
    """The sink of `jsonl:DIRECTORY`."""
    if parts.netloc or not parts.path:
        raise ConfigurationError("a jsonl address names a directory and no host")
    return JsonlSink(Path(unquote(parts.path), beside))


def file_name(known_as: str, partition: int, history: int = 1) -> str:
    """The file name: it cannot lead out of the directory, and every file system accepts it."""
    stem = quote(known_as, safe="")
    if len(stem) > _LONGEST_STEM:
        digest = hashlib.sha256(known_as.encode()).hexdigest()[:32]
        stem = f"{stem[:_LONGEST_STEM]}~{digest}"
    first = f"{stem}.{partition}"
    return f"{first}.jsonl" if history == 1 else file_name_of(first, str(history))


def file_name_of(stem: str, history: str) -> str:
    """The file of a later history."""
    return f"{stem}.history-{history}.jsonl"


def end_before(file: int, sequence: int) -> int:
    """The offset after the last whole line of a smaller sequence, searched from the end."""
    end = os.fstat(file).st_size
    tail = b""
    start = end
    while start > 0:
        step = min(_CHUNK, start)
        start -= step
        tail = read(file, start, step) + tail
        # The first piece may have begun before this chunk, so it is examined with the next one.
        head, found, rest = (b"", True, tail) if start == 0 else _cut(tail)
        if not found:
            continue
        place = _end_in(rest, sequence)
        if place is not None:
            return start + len(head) + place
        tail = head
    return 0


def _cut(tail: bytes) -> tuple[bytes, bool, bytes]:
    first = tail.find(b"\n")
    return tail[: first + 1], first >= 0, tail[first + 1 :]


def _end_in(text: bytes, sequence: int) -> int | None:
    """The end of the last whole line of a smaller sequence.

    A torn or damaged line does not count.
    """
    stop = text.rfind(b"\n") + 1
    while stop > 0:
        begin = text.rfind(b"\n", 0, stop - 1) + 1
        found = sequence_of(text[begin:stop])
        if found is not None and found < sequence:
            return stop
        stop = begin
    return None


def _history(name: str, stem: str) -> str | None:
    """The number of the history in the name of a file of later ones."""
    rest = name.removeprefix(f"{stem}.history-").removesuffix(".jsonl")
    return rest if file_name_of(stem, rest) == name and rest.isdecimal() else None


def _last_sequence(path: Path) -> int | None:
    """The sequence of the last whole line.  None when there is none."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        end = end_before(file, sys.maxsize)
        start = max(0, end - _CHUNK)
        while end > 0:
            text = read(file, start, end - start)
            begin = text.rfind(b"\n", 0, len(text) - 1) + 1
            if begin > 0 or start == 0:
                return sequence_of(text[begin:])
            start = max(0, start - (end - start))
        return None
    finally:
        os.close(file)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    with suppress(FileNotFoundError):
        return os.open(path, flags)
    _make_directory(path.parent)
    file = os.open(path, flags | os.O_CREAT, 0o644)
    # The name of a new file is durable only with its directory.
    _sync_directory(path.parent)
    return file


def _make_directory(directory: Path) -> None:
    if not directory.is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unreadable(path: Path, error: OSError) -> SinkUnavailable:
    return SinkUnavailable(f"{path} cannot be read ({error.strerror})")


def _unavailable(path: Path, error: OSError) -> SinkUnavailable:
    hint = "free or add disk space" if error.errno in {errno.ENOSPC, errno.EDQUOT} else ""
    return SinkUnavailable(f"{path} cannot be written ({error.strerror})", hint=hint)
