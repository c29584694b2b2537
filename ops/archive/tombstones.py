"""What takes the place of an erased event, in the archive as in the database."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ops.archive.copy_readings import CopyReading
from penstock.archive.copies import EpochKey, key_of
from penstock.database import call, connect
from penstock.errors import EpochError
from penstock.records import LogEpoch

_MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Tombstone:
    """By which erasure an event was erased, and whether its key was too."""

    erasure: str
    replace_key: bool

    @property
    def headers(self) -> str:
        """The text of the headers, byte for byte as the database has it."""
        return json.dumps({"penstock-erased": self.erasure})


#: The erased events of a log epoch, by their sequences.
Tombstones = Mapping[int, Tombstone]


def with_tombstones(batch: pa.RecordBatch, tombstones: Tombstones) -> pa.RecordBatch:
    """Rows with the columns of the archive, the erased ones replaced."""
    sequences: list[Any] = batch.column("sequence").to_pylist()
    hits = {n: tombstones[each] for n, each in enumerate(sequences) if each in tombstones}
    if not hits:
        return batch
    changed: dict[str, list[Any]] = {
        name: batch.column(name).to_pylist() for name in ("key", "headers", "payload")
    }
    for n, tombstone in hits.items():
        changed["payload"][n] = b""
        changed["headers"][n] = tombstone.headers
        if tombstone.replace_key:
            changed["key"][n] = None
    columns = [
        pa.array(changed[field.name], field.type) if field.name in changed else column
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def unfinished(connection: Any, topic: str) -> str:
    """What to do about the erasure of a topic that was begun and not ended; empty when none was.

    It may have replaced files whose new checksums only its end tells the database.
    """
    for erasure, _, event_id, _, _, _, _, begun, finished, *_ in call(
        connection, "list_erasures", topic=topic
    ):
        if finished is None:
            what = "--key KEY" if event_id is None else f"--event-id {event_id}"
            return (
                f"the erasure {erasure} of {topic}, begun at {begun}, was not ended: run the same "
                f'command again, penstock erase --topic "{topic}" {what} --reason REASON --yes'
            )
    return ""


def require_ended(connection: Any, topic: str, readings: Iterable[CopyReading]) -> None:
    """EpochError when copies are whole, but for what an erasure has done that was not ended.

    Nothing of them is damaged: the erasure needs them to go on.
    """
    others = [each for each in readings if each.other_log]
    what = unfinished(connection, topic) if others else ""
    if what:
        raise EpochError(
            f"log epoch {others[0].log_epoch} of {topic}/{others[0].partition} is not what was "
            "sealed, because events of it are being erased",
            hint=what,
        )


def not_of_other_logs(
    url: str,
    damaged: Sequence[LogEpoch],
    readings: Mapping[EpochKey, CopyReading],
    failed: dict[EpochKey, str],
) -> list[LogEpoch]:
    """Without those whose copy is a whole one of some other log: no repair ever replaces it.

    Nor one that an erasure has written which was not ended.
    """
    others = [epoch for epoch in damaged if readings[key_of(epoch)].other_log]
    if others:
        with connect(url) as connection:
            erased = unfinished(connection, others[0].topic)
        for epoch in others:
            failed[key_of(epoch)] = erased or (
                "the target holds another log's archive of it: give this installation a target of "
                "its own, or move the old one away"
            )
    return [epoch for epoch in damaged if key_of(epoch) not in failed]


def tombstones_of(connection: Any, epoch: LogEpoch) -> dict[int, Tombstone]:
    """What the database has recorded of a log epoch."""
    found: dict[int, Tombstone] = {}
    first = epoch.first_sequence
    while first <= epoch.last_sequence:
        rows = call(
            connection,
            "erased_of",
            topic=epoch.topic,
            partition=epoch.partition,
            first_sequence=first,
            last_sequence=epoch.last_sequence,
            max_rows=_MOST_ROWS,
        )
        found |= {row[0]: Tombstone(str(row[1]), bool(row[2])) for row in rows}
        if len(rows) < _MOST_ROWS:
            break
        first = rows[-1][0] + 1
    return found


def old_checksums(connection: Any, topic: str) -> dict[EpochKey, set[str]]:
    """The checksums that log epochs of a topic had before events of them were erased."""
    found: dict[EpochKey, set[str]] = {}
    for partition, log_epoch, old, *_ in call(connection, "reissued_of", topic=topic):
        found.setdefault((partition, log_epoch), set()).add(str(old))
    return found
