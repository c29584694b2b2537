"""The windows of a range that a person names by sequences, positions of the log, or times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ops.backfill.requests import Window
from penstock.archive.times import position_at
from penstock.cli.starts import time_of
from penstock.errors import InvalidArgument
from penstock.log.positions import sequence_of
from penstock.topics.names import partition_ranges

if TYPE_CHECKING:
    from penstock.archive.targets import Target

_SEQUENCE = re.compile(r"[1-9]\d{0,18}", re.ASCII)
_LSN = re.compile(r"\d+\.\d+", re.ASCII)


def windows_of(
    connection: Any,
    topic: str,
    *,
    partition: int | None = None,
    begin: str = "",
    end: str = "",
    targets: Sequence[Target] = (),
) -> list[Window]:
    """A window for each partition that has events there.

    An end is a sequence or an LSN, which belongs to the range, or a time with its zone: the first
    event sequenced then or later begins it, and does not belong to it any more at its end. Empty:
    the first event, and the last one.
    """
    if _LSN.fullmatch(begin or end) and partition is None:
        raise InvalidArgument(
            f"{begin or end!r} is a position of one partition", hint="give it: --partition NUMBER"
        )
    found = []
    for each in partition_ranges(connection, topic):
        if partition not in {None, each.partition}:
            continue
        place = (connection, topic, each.partition)
        first = _first(place, begin, targets) if begin else 1
        last = _last(place, end, targets) if end else each.high_watermark
        if first <= min(last, each.high_watermark):
            found.append(Window(each.partition, first, min(last, each.high_watermark)))
    if not found:
        raise InvalidArgument(
            f"no partition of {topic} has events from {begin or 'the first'} to "
            f"{end or 'the last'}",
            hint="see penstock topic describe",
        )
    return found


_Place = tuple[Any, str, int]


def _first(place: _Place, text: str, targets: Sequence[Target]) -> int:
    exact = _exact(place, text)
    return exact or position_at(*place, _time(text), targets=targets) + 1


def _last(place: _Place, text: str, targets: Sequence[Target]) -> int:
    exact = _exact(place, text)
    return exact or position_at(*place, _time(text), targets=targets)


def _exact(place: _Place, text: str) -> int:
    if _SEQUENCE.fullmatch(text):
        return int(text)
    return sequence_of(*place, text) if _LSN.fullmatch(text) else 0


def _time(text: str) -> Any:
    found = time_of(text)
    if found is None:
        raise InvalidArgument(
            f"{text[:80]!r} is no sequence, no LSN and no time with a zone",
            hint="write 17, 3.17 or 2026-01-31T09:30:00+01:00",
        )
    return found
