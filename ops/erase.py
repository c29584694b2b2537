"""Erase: replace payload and headers of events by a recorded tombstone, wherever Penstock has them.

The sequence and the number of events stay.  What the database holds is replaced by SQL, a log epoch
at a time; what only the archive holds, by :mod:`ops.archive.erasing`.  Copies that Penstock has
given away are not erased: they are named in the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic, sleep
from typing import Any, TypeVar
from uuid import UUID

from ops.archive import erasing, manifest
from ops.archive.foreign import adopt
from ops.archive.tombstones import Tombstone, tombstones_of
from ops.seal import copies_of, log_epochs
from penstock.archive.copies import EpochKey, key_of
from penstock.archive.copy_reader import read_copy
from penstock.archive.targets import Target
from penstock.database import call, connect
from penstock.errors import (
    CopyDamaged,
    EpochError,
    ErasureRefused,
    InvalidArgument,
    TargetUnavailable,
)
from penstock.records import LogEpoch
from penstock.subscriptions.overview import list_subscriptions
from penstock.topics import holds
from penstock.topics.names import partition_ranges

_EVENTS_AT_ONCE = 10_000
_SEQUENCES_AT_ONCE = 100_000
_LETTERS_AT_ONCE = 1_000
#: Each copy of a dead letter in another topic is an erasure of its own.
_COPIES_AT_ONCE = 1_000
#: So long it waits for the sequences of these copies.
_WAIT_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
#: A step looks at so many events, or computes the checksum of a log epoch.
_TIMEOUT_MS = 600_000

_T = TypeVar("_T")
#: The sequence of an event, and its id.
_Place = tuple[int, str]


@dataclass(frozen=True, slots=True)
class What:
    """What is to be erased: one event, or all events of one key."""

    topic: str
    event_id: str | None = None
    key: str | None = None
    replace_key: bool = False

    def __post_init__(self) -> None:
        """InvalidArgument unless it is exactly one of both, and the id is one."""
        if (self.event_id is None) == (self.key is None):
            raise InvalidArgument(
                "an erasure of neither an event nor a key, or of both",
                hint="name the id of an event, or a key",
            )
        if self.event_id is not None:
            # The archive has ids as the database writes them.
            object.__setattr__(self, "event_id", _event_id(self.event_id))


def _event_id(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is not the id of an event", hint="an id is a UUID, as `penstock fetch` shows"
        ) from None


@dataclass(frozen=True, slots=True)
class Erasure:
    """What a run has found or done; ``erasure`` is empty after a dry run.

    ``gone`` are dropped log epochs that nobody has: no copy was recorded on a target that is given,
    and they were not rehydrated.  ``outside`` names where copies may be that Penstock cannot reach.
    ``copies`` counts dead letters of these events that were erased in the topics that they were
    forwarded to; a dry run does not look for them.
    """

    erasure: str
    topic: str
    events_in_database: int
    events_in_archive: int
    letters: int
    files: int
    gone: int
    outside: tuple[str, ...]
    copies: int = 0


@dataclass(frozen=True, slots=True)
class _ErasedEvents:
    """The events that are to be erased, by partition and by dropped log epoch, and their ids."""

    hot: dict[int, list[_Place]]
    cold: dict[EpochKey, list[_Place]]
    gone: int

    def of(self, what: What) -> _ErasedEvents:
        """Those of one of several erasures."""

        def chosen(found: dict[Any, list[_Place]]) -> dict[Any, list[_Place]]:
            kept = {
                key: [each for each in places if what.event_id in {None, each[1]}]
                for key, places in found.items()
            }
            return {key: places for key, places in kept.items() if places}

        return _ErasedEvents(chosen(self.hot), chosen(self.cold), self.gone)

    @property
    def in_database(self) -> int:
        return sum(map(len, self.hot.values()))

    @property
    def in_archive(self) -> int:
        return sum(map(len, self.cold.values()))


def erase(
    url: str,
    what: What,
    reason: str,
    targets: Sequence[Target],
    *,
    without: Sequence[str] = (),
    dry_run: bool = False,
) -> Erasure:
    """Erase what has its sequence now.  It can be stopped at any point and run again.

    ``targets`` are all places with copies of the topic, but for those ``without`` which it has to
    do: they are lost, and whoever finds one again has to destroy it.  With ``dry_run`` it only
    counts.
    """
    (done,) = _erase_all(url, [what], reason, targets, without=without, dry_run=dry_run)
    return done


def _erase_all(
    url: str,
    wanted: Sequence[What],
    reason: str,
    targets: Sequence[Target],
    *,
    without: Sequence[str],
    dry_run: bool = False,
) -> list[Erasure]:
    """Erase several events of one topic, or one key.  Log and archive are searched once for all."""
    topic = wanted[0].topic
    with connect(
        url, application_name="penstock erase", statement_timeout_ms=_TIMEOUT_MS
    ) as connection:
        recorded = [each for each in copies_of(connection, topic) if each.target not in without]
        _require_targets(topic, {each.target for each in recorded}, targets)
        for target in targets:  # while its rows are as the seals say
            adopt(url, topic, target)
        archived = {(each.partition, each.log_epoch) for each in recorded}
        found = _found(connection, wanted, targets, archived)
        outside = (
            *(f"the archive target {name}, which was left out" for name in without),
            *_outside(connection, topic),
        )
        _require_unheld(connection, topic, found)

        def erase_copies(copies: Sequence[What]) -> list[Erasure]:
            return _erase_all(url, copies, reason, targets, without=without)

        results = []
        for what in wanted:
            own = found.of(what)
            places = own.in_database, own.in_archive
            result = Erasure("", topic, *places, 0, 0, own.gone, outside)
            if not dry_run:
                result = replace(result, erasure=_begin(connection, what, reason))
                result = _erase(connection, url, what, targets, found=own, result=result)
                result = _with_copies(connection, result, what, erase_copies)
            results.append(result)
        return results


def _begin(connection: Any, what: What, reason: str) -> str:
    ((erasure,),) = call(
        connection, "begin_erasure", topic=what.topic, event_id=what.event_id, key=what.key,
        reason=reason, replace_key=what.replace_key,
    )  # fmt: skip
    return str(erasure)


def _erase(
    connection: Any,
    url: str,
    what: What,
    targets: Sequence[Target],
    *,
    found: _ErasedEvents,
    result: Erasure,
) -> Erasure:
    for partition, places in found.hot.items():
        sequences = [sequence for sequence, _ in places]
        for lot in _lots(connection, what.topic, partition, sequences):
            erasing.erase_events(connection, result.erasure, partition, lot)
    letters = _letters(connection, result.erasure, what.key)
    run = erasing.begin(connection, url, what.topic)
    _add_pending(run, targets, found.cold, Tombstone(result.erasure, what.replace_key))
    files = [file for target in targets for file in erasing.rewrite(run, target)]
    # Consumers of the archive may have given up some of these events meanwhile.
    letters += _letters(connection, result.erasure, what.key)
    call(connection, "finish_erasure", erasure=result.erasure)
    return replace(result, letters=letters, files=len(files))


def _copies(connection: Any, erasure: str, key: str | None) -> list[tuple[str | None, str]]:
    """Topic and id of the copies of dead letters in other topics, once they have their sequences.

    The topic is None where the login may not operate it.
    """
    until = monotonic() + _WAIT_SECONDS
    while True:
        rows = call(
            connection, "copies_of_erasure", erasure=erasure, key=key, max_rows=_COPIES_AT_ONCE
        )
        waiting = [topic for topic, _, waits in rows if waits and topic is not None]
        if not waiting:
            return [(topic, str(event_id)) for topic, event_id, _ in rows]
        if monotonic() > until:
            raise ErasureRefused(
                f"a dead letter of these events lies in {waiting[0]!r} and has no sequence yet",
                hint="let the sequencer run (penstock sequence), then run the same erasure again",
            )
        sleep(_PAUSE_SECONDS)


def _with_copies(
    connection: Any,
    result: Erasure,
    what: What,
    erase_copies: Callable[[Sequence[What]], list[Erasure]],
) -> Erasure:
    """Erases the copies in their topics, and what was forwarded from there.

    It asks until nothing is new: a copy may be moved on while another one is erased.
    """
    done, asked = 0, set[str]()
    while True:
        copies = _copies(connection, result.erasure, what.key)
        new = defaultdict(list)
        for topic, copy in copies:
            if topic is not None and copy not in asked:
                new[topic].append(What(topic, event_id=copy, replace_key=what.replace_key))
        if not new:
            break
        asked |= {copy for _, copy in copies}
        for in_topic in new.values():
            for of_copy in erase_copies(in_topic):
                done += of_copy.events_in_database + of_copy.events_in_archive + of_copy.copies
    outside = result.outside
    hidden = sum(topic is None for topic, _ in copies)
    if hidden:
        outside = (f"{hidden} dead letters in topics that this login may not operate", *outside)
    if len(copies) == _COPIES_AT_ONCE:
        outside = ("more dead letters in other topics: run the same command again", *outside)
    return replace(result, copies=done, outside=outside)


def _require_targets(topic: str, recorded: Collection[str], targets: Sequence[Target]) -> None:
    """TargetUnavailable when copies are recorded on a target that is not given."""
    unknown = sorted(set(recorded) - {target.name for target in targets})
    if unknown:
        raise TargetUnavailable(
            f"copies of {topic} are recorded on targets that are not known here: "
            f"{', '.join(unknown)}",
            hint="name each of them: --target NAME=DIRECTORY; one that is lost for good: "
            "--without NAME; nothing was erased",
        )


def _outside(connection: Any, topic: str) -> list[str]:
    """Where copies may be that Penstock cannot reach."""
    readers = [each.name for each in list_subscriptions(connection) if topic in each.topics]
    said = [f"what the consumer or relay of subscription {each!r} has stored" for each in readers]
    return [
        *said,
        "backups, replicas and volume snapshots of the database, and its log files",
        "backups and old versions of the archive's storage",
        "what Spark jobs, exports and applications have written elsewhere",
    ]


def _found(
    connection: Any,
    wanted: Sequence[What],
    targets: Sequence[Target],
    archived: Collection[EpochKey],
) -> _ErasedEvents:
    topic = wanted[0].topic
    hot: dict[int, list[_Place]] = {}
    for part in partition_ranges(connection, topic):
        place = part.partition, part.low_sequence, part.high_watermark
        hot[part.partition] = list(_in_database(connection, wanted, *place))
    rehydrated = {row[:2] for row in call(connection, "rehydrated_of", topic=topic)}
    cold, gone = {}, 0
    for epoch in log_epochs(connection, topic):
        if epoch.dropped_at is None:
            continue
        if key_of(epoch) not in archived:
            # Without a copy, what was rehydrated is all there is of it.
            if key_of(epoch) in rehydrated:
                place = epoch.partition, epoch.first_sequence, epoch.last_sequence
                hot[epoch.partition] += _in_database(connection, wanted, *place)
            else:
                gone += 1
            continue
        erased = tombstones_of(connection, epoch)
        matches = _read_whole(connection, epoch, targets, _matcher(wanted))
        fresh = [each for each in matches if each[0] not in erased]
        if fresh:
            cold[key_of(epoch)] = fresh
    return _ErasedEvents(hot, cold, gone)


def _in_database(
    connection: Any, wanted: Sequence[What], partition: int, lowest: int, highest: int
) -> Iterator[_Place]:
    """The places of a range of a partition that the database has, a window at a time."""
    ids = [each.event_id for each in wanted if each.event_id is not None]
    for first in range(lowest, highest + 1, _EVENTS_AT_ONCE):
        rows = call(
            connection,
            "find_erasable",
            topic=wanted[0].topic,
            partition=partition,
            from_sequence=first,
            max_events=min(_EVENTS_AT_ONCE, highest - first + 1),
            event_ids=ids or None,
            key=wanted[0].key,
        )
        for sequence, event_id in rows:
            yield int(sequence), str(event_id)


def _matcher(wanted: Sequence[What]) -> Callable[[Target, Any], list[_Place]]:
    ids, key = {each.event_id for each in wanted}, wanted[0].key

    def matches(target: Target, copy: Any) -> list[_Place]:
        found = []
        for batch in read_copy(target, copy, copy.first_sequence, copy.last_sequence):
            columns = (batch.column(name).to_pylist() for name in ("sequence", "event_id", "key"))
            for sequence, event_id, own_key in zip(*columns, strict=True):
                if event_id in ids or (own_key is not None and own_key == key):
                    found.append((sequence, event_id))
        return found

    return matches


def _read_whole(
    connection: Any,
    epoch: LogEpoch,
    targets: Sequence[Target],
    read: Callable[[Target, Any], _T],
) -> _T:
    """What a function makes of the first copy of a dropped log epoch that can be read."""
    reasons = []
    for target in targets:
        copy = manifest.recorded(connection, target.name, [epoch]).get(key_of(epoch))
        if copy is None:
            continue
        try:
            return read(target, copy)
        except (CopyDamaged, TargetUnavailable) as error:
            reasons.append(f"{target.name}: {error.message}")
    raise EpochError(
        f"no target gives log epoch {epoch.log_epoch} of {epoch.topic}/{epoch.partition} "
        f"({'; '.join(reasons) or 'no copy is verified'})",
        hint="bring a target back, or let penstock backfill make the copy again; then run it again",
    )


def _require_unheld(connection: Any, topic: str, found: _ErasedEvents) -> None:
    """ErasureRefused before anything is written; the database looks again at each step."""
    places = [*found.hot.items(), *((key[0], each) for key, each in found.cold.items())]
    for hold in holds.list_holds(connection, topic):
        for partition, sequences in places:
            held = [
                each
                for each, _ in sequences
                if hold.partition in {None, partition}
                and hold.first_sequence <= each <= (hold.last_sequence or each)
            ]
            if held:
                raise ErasureRefused(
                    f"legal hold {hold.name!r} covers sequence {held[0]} of partition {partition}",
                    hint="what is held is not erased: release the hold first",
                )


def _lots(connection: Any, topic: str, partition: int, sequences: Sequence[int]) -> list[list[int]]:
    """The sequences by log epoch; the last lot is not sealed yet."""
    ends = sorted(
        each.last_sequence for each in log_epochs(connection, topic) if each.partition == partition
    )
    lots: list[list[int]] = []
    end = 0
    for sequence in sorted(sequences):
        if not lots or sequence > end > 0 or len(lots[-1]) >= _SEQUENCES_AT_ONCE:
            lots.append([])
            end = next((each for each in ends if each >= sequence), 0)
        lots[-1].append(sequence)
    return lots


def _add_pending(
    run: erasing.Erasing,
    targets: Sequence[Target],
    cold: dict[EpochKey, list[_Place]],
    tombstone: Tombstone,
) -> None:
    """What is to be erased of dropped log epochs, with the checksums that they will have."""
    if not cold:
        return
    run.epochs.update({key_of(each): each for each in log_epochs(run.connection, run.topic)})
    for key, places in cold.items():
        sequences = [sequence for sequence, _ in places]
        epoch = run.epochs[key]
        tombstones = dict(run.tombstones.get(key) or tombstones_of(run.connection, epoch))
        tombstones |= dict.fromkeys(sequences, tombstone)

        def after(target: Target, copy: Any, chosen: Any = tombstones) -> str:
            return erasing.checksum_after(target, copy, chosen)

        checksum = _read_whole(run.connection, epoch, targets, after)
        run.tombstones[key] = tombstones
        run.pending[key] = erasing.Pending(
            tombstone.erasure, tuple(sequences), epoch.checksum, checksum
        )


def _letters(connection: Any, erasure: str, key: str | None) -> int:
    letters = 0
    while True:
        ((done,),) = call(
            connection, "erase_letters", erasure=erasure, key=key, max_rows=_LETTERS_AT_ONCE
        )
        letters += int(done)
        if not done:
            return letters


@dataclass(frozen=True, slots=True)
class ErasureRecord:
    """An erasure as it is recorded; ``event_id`` None: it was of a key, which is not kept.

    ``seals`` are the checksums of log epochs that were issued again.
    """

    erasure: str
    topic: str
    event_id: str | None
    by_key: bool
    replace_key: bool
    reason: str
    requested_by: str
    requested_at: datetime
    finished_at: datetime | None
    events: int
    letters: int
    seals: int


def list_erasures(connection: Any, topic: str | None = None) -> list[ErasureRecord]:
    """The record of erasures of a topic, or of all, newest first."""
    found = []
    for row in call(connection, "list_erasures", topic=topic):
        erasure, address, event_id, by_key, replace_key, *rest = row
        found.append(
            ErasureRecord(str(erasure), address, event_id, bool(by_key), bool(replace_key), *rest)
        )
    return found
