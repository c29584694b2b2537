"""Alternating pairs: ours and the peer take turns, so that the machine's moods hit both alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

#: Does the work once and answers how many seconds the measured part took.
Run = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure: ``ours`` and ``peer`` each move ``rows`` rows in a run."""

    name: str
    rows: int
    batch: int
    ours: Run
    peer: Run | None = None
    unit: str = "events/s"


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of bench.json: medians, and the median of the pairs' ratios (ours / peer)."""

    name: str
    engine: str
    value: float
    unit: str
    peer: float | None
    ratio: float | None
    rows: int
    batch: int


def measure(case: Case, engine: str, rounds: int) -> Figure:
    """Run the case in ``rounds`` pairs, after one pair that only warms up."""
    _pair(case, ours_first=True)
    pairs = [_pair(case, ours_first=turn % 2 == 1) for turn in range(rounds)]
    ours = median(case.rows / seconds for seconds, _ in pairs)
    peers = [case.rows / seconds for _, seconds in pairs if seconds is not None]
    ratios = [seconds / own for own, seconds in pairs if seconds is not None]
    return Figure(
        name=case.name,
        engine=engine,
        value=round(ours, 1),
        unit=case.unit,
        peer=round(median(peers), 1) if peers else None,
        ratio=round(median(ratios), 3) if ratios else None,
        rows=case.rows,
        batch=case.batch,
    )


def _pair(case: Case, *, ours_first: bool) -> tuple[float, float | None]:
    if case.peer is None:
        return case.ours(), None
    if ours_first:
        ours = case.ours()
        return ours, case.peer()
    peer = case.peer()
    return case.ours(), peer


def batches(total: int, size: int) -> Iterator[range]:
    """The numbers 0 .. total - 1 in ranges of at most ``size``."""
    for start in range(0, total, size):
        yield range(start, min(start + size, total))
