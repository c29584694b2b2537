"""Alternating pairs: ours and the peer take turns, so that the machine's load affects both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

#: Does the work once and returns how many seconds the measured part took.
Run = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a run.  ``rows`` replaces every default amount."""

    rows: int | None = None
    rounds: int = 5
    hold_seconds: float = 600
    held_events: int = 0
    held_batch: int = 500
    retained_events: int = 10_000_000
    load_seconds: float = 60
    unvacuumed_seconds: float = 120
    #: How many messages wait in the queues of `scale` when they are measured once more; 0: not.
    waiting: int = 0
    #: Leave out what takes long and has no aim that is open.
    short: bool = False

    def amount(self, default: int) -> int:
        """How many rows a case moves."""
        return self.rows or default


@dataclass(frozen=True, slots=True)
class Aim:
    """What a figure is meant to reach: exactly one of the fields is given."""

    ratio: float | None = None
    value: float | None = None
    at_most: float | None = None
    cost: float | None = None

    def __str__(self) -> str:
        if self.ratio is not None:
            return f">= {self.ratio:g}x"
        if self.cost is not None:
            return f"cost <= {self.cost:g}x"
        if self.value is not None:
            return f">= {self.value:,.0f}"
        return f"<= {self.at_most:,g}"

    def met(self, value: float, ratio: float | None) -> bool:
        """Whether the figure reaches the aim.  A cost is the inverse of the ratio of two rates."""
        if self.value is not None:
            return value >= self.value
        if self.at_most is not None:
            return value <= self.at_most
        wanted = self.ratio if self.cost is None else 1 / self.cost
        return ratio is not None and wanted is not None and ratio >= wanted


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure: ``ours`` and ``peer`` each move ``rows`` rows in a run.

    ``against`` names the peer.  A much slower peer may move ``peer_rows`` instead.
    """

    name: str
    rows: int
    batch: int
    ours: Run
    peer: Run | None = None
    against: str = ""
    aim: Aim | None = None
    unit: str = "events/s"
    peer_rows: int | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of bench.json: medians, and the median of the pairs' ratios (ours / peer).

    The run fills in the engine.
    """

    name: str
    engine: str
    value: float
    unit: str
    peer: float | None
    ratio: float | None
    rows: int
    batch: int
    against: str = ""
    aim: str | None = None
    met: bool | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """A case that could not be measured here, and why."""

    name: str
    reason: str


def measure(case: Case, rounds: int) -> Figure:
    """Run the case in ``rounds`` pairs, after one pair to warm up."""
    _pair(case, ours_first=True)
    pairs = [_pair(case, ours_first=turn % 2 == 1) for turn in range(rounds)]
    ours = [case.rows / seconds for seconds, _ in pairs]
    peer_rows = case.peer_rows or case.rows
    peers = [peer_rows / seconds for _, seconds in pairs if seconds is not None]
    ratios = [own / other for own, other in zip(ours, peers, strict=True)] if peers else []
    return figure(
        case.name,
        median(ours),
        unit=case.unit,
        peer=median(peers) if peers else None,
        ratio=median(ratios) if ratios else None,
        rows=case.rows,
        batch=case.batch,
        against=case.against,
        aim=case.aim,
    )


def figure(
    name: str,
    value: float,
    *,
    unit: str,
    rows: int,
    batch: int,
    peer: float | None = None,
    ratio: float | None = None,
    against: str = "",
    aim: Aim | None = None,
) -> Figure:
    """A figure with its aim judged."""
    return Figure(
        name=name,
        engine="",
        value=round(value, 1),
        unit=unit,
        peer=None if peer is None else round(peer, 1),
        ratio=None if ratio is None else round(ratio, 3),
        rows=rows,
        batch=batch,
        against=against,
        aim=None if aim is None else str(aim),
        met=None if aim is None else aim.met(value, ratio),
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
