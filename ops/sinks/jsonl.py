"""CloudEvents JSON Lines in files, exactly once over kills, pauses and power failures.

There is one file per topic (under its permanent name), partition and history. Three facts make it
exact, without a lock that a paused process could hold:

* an event's line is a function of the event alone (`ops.sinks.cloudevents.to_json`), so a
  line has one place in the file and one content;
* everything before a block is complete and on the disk before the block is opened, so the place
  where a block begins is the end of the last whole line with a smaller sequence, whoever looks
  and whenever;
* a block is written with `pwrite` at that place, never appended and never truncated.

A relay that was killed leaves a torn tail: a prefix of the block. Its successor writes the same
bytes over it. A relay that was paused, before or inside the write, wakes up and writes the same
bytes to the same place. This does no harm, and no other relay had to wait for it. After a power
failure a torn block can have holes, so the sink compares what is in the file with the block. It
flushes even when both are equal, because the first writer may have died before its fsync.

A reader that follows the file while it grows takes whole lines only.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote

from ops.sinks.base import RelayBlock, SinkLease, SinkMisconfigured, SinkUnavailable, encoded
from ops.sinks.cloudevents import to_json
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
        lines = b"".join(line + b"\n" for line in encoded(block.events, to_json))
        path = self._sink.path(block.known_as, block.partition, block.history)
        try:
            self._store(path, block, lines)
        except OSError as error:
            raise _unavailable(path, error) from error

    def close(self) -> None:
        """Nothing is held open between two blocks."""

    def abort(self) -> None:
        """A call of the file system cannot be ended."""

    def _store(self, path: Path, block: RelayBlock, lines: bytes) -> None:
        file = _open(path)
        try:
            offset = self._place(file, path, block)
            there = _read(file, offset, len(lines) + 1)
            if _holds_others(there, block):
                raise _other_events(path, block)
            if len(there) <= len(lines):
                # Written also when all of it is there: after an fsync that failed, only new pages
                # are flushed.
                _write(file, offset, lines)
            elif not there.startswith(lines):
                raise _other_lines(path)
            os.fsync(file)
            inode = os.fstat(file).st_ino
        finally:
            os.close(file)
        self._end = _End(path, inode, block.last_sequence, offset + len(lines))

    def _place(self, file: int, path: Path, block: RelayBlock) -> int:
        known = self._end
        if known is not None and (known.path, known.sequence + 1) == (path, block.first_sequence):
            status = os.fstat(file)
            if status.st_ino == known.inode and status.st_size >= known.offset:
                return known.offset
        return end_before(file, block.first_sequence)


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
        tail = _read(file, start, step) + tail
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
        found = _sequence(text[begin:stop])
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
            text = _read(file, start, end - start)
            begin = text.rfind(b"\n", 0, len(text) - 1) + 1
            if begin > 0 or start == 0:
                return _sequence(text[begin:])
            start = max(0, start - (end - start))
        return None
    finally:
        os.close(file)


def _sequence(line: bytes) -> int | None:
    try:
        return int(json.loads(line)["sequence"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _holds_others(there: bytes, block: RelayBlock) -> bool:
    """Whether a whole line at the block's place is a different event under one of its sequences.

    After a power failure, a line of a torn block is either not whole or the same event.
    """
    ids = {event.sequence: str(event.event_id) for event in block.events} if there else {}
    for line in there.splitlines():
        found = _sequence(line)
        if found in ids and json.loads(line).get("id") != ids[found]:
            return True
    return False


def _other_events(path: Path, block: RelayBlock) -> SinkMisconfigured:
    return SinkMisconfigured(
        f"{path} holds other events under the sequences {block.first_sequence} to "
        f"{block.last_sequence}",
        hint="the database was restored to an older state: open the next history by "
        "`penstock restore reconcile`, and the relay goes on in a new file",
    )


def _other_lines(path: Path) -> SinkMisconfigured:
    """There is more than a torn block where the block belongs: another program wrote it."""
    return SinkMisconfigured(
        f"{path} holds other lines where the block belongs",
        hint="move the file away; the relay writes a new one",
    )


def _read(file: int, offset: int, length: int) -> bytes:
    pieces: list[bytes] = []
    while length > 0:
        piece = os.pread(file, length, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return b"".join(pieces)


def _write(file: int, offset: int, lines: bytes) -> None:
    view = memoryview(lines)
    while view:
        written = os.pwrite(file, view, offset)
        offset += written
        view = view[written:]


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
