"""What is known of a run: its histories and its dump, sorted for the checker's rules.

Like the checker it imports nothing of Penstock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.faults.told_jobs import Jobs, Record

#: Subscription and partition.
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that must not be."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Written:
    """An event of the log."""

    partition: int
    sequence: int
    label: str
    key: str
    at: float


@dataclass(frozen=True, slots=True)
class Change:
    """A row of the history of leases."""

    epoch: int
    holder: str
    change: str
    at: float


@dataclass(frozen=True, slots=True)
class Position:
    """A row of the ledger of positions."""

    position: int
    epoch: int
    reason: str
    at: float


@dataclass
class Transaction:
    """What a publisher did in one transaction, and what became of it."""

    begun: float
    #: When its outcome was known; of one that nobody knows it may still come.
    ended: float = float("inf")
    outcome: str = "fail"
    events: list[str] = field(default_factory=list)
    undone: set[str] = field(default_factory=set)
    #: No COMMIT of it was sent before this.
    staged: float = float("inf")
    strict: bool = False
    #: Events with their dedup keys, and those answered as duplicates with what was named.
    keys: dict[str, str] = field(default_factory=dict)
    duplicates: list[list[str]] = field(default_factory=list)


class Run:
    """All that is known of a run, sorted for the rules."""

    def __init__(self, records: Iterable[Record], dump: dict[str, Any]) -> None:
        self.records = sorted(records, key=lambda record: record["t"])
        self.by_op: dict[str, list[Record]] = defaultdict(list)
        for record in self.records:
            self.by_op[record["op"]].append(record)
        self.kinds: dict[str, str] = dump["subscriptions"]
        self.lease_seconds = float(dump["lease_seconds"])
        self.release_seconds = float(dump.get("release_seconds", dump["lease_seconds"]))
        self.log = [Written(*row) for row in dump["log"]]
        self.at_place = {(each.partition, each.sequence): each for each in self.log}
        #: What a copy says otherwise than the log, or than another copy.
        self.changed: list[tuple[Written, Written]] = []
        #: For each partition, when each of its sequences was copied first.
        self.copied: dict[int, dict[int, float]] = defaultdict(dict)
        for copy in self.by_op["copied"]:
            self._take_copy(copy)
        self.ends: Counter[int] = Counter()
        for each in self.log:
            self.ends[each.partition] = max(self.ends[each.partition], each.sequence)
        self.leases: dict[Place, list[Change]] = defaultdict(list)
        for name, partition, *change in dump["leases"]:
            self.leases[name, partition].append(Change(*change))
        self.ledger: dict[Place, list[Position]] = defaultdict(list)
        for name, partition, *position in dump["ledger"]:
            self.ledger[name, partition].append(Position(*position))
        self.effects: Counter[tuple[str, int, int]] = Counter()
        self.effect_labels: list[str] = []
        self._sought: dict[Place, list[int]] = {}
        for name, partition, sequence, label in dump["effects"]:
            self.effects[name, partition, sequence] += 1
            self.effect_labels.append(label)
        self.dead = Counter((*row[:3],) for row in dump["dead"] if row[0] in self.kinds)
        self.transactions = _transactions(self.by_op)
        self.polls = [each for each in self.by_op["poll"] if each["st"] == "ok"]
        self.acknowledged = [each for each in self.by_op["commit"] if each["st"] == "ok"]
        self.jobs = Jobs(self.by_op, dump)

    def _take_copy(self, record: Record) -> None:
        """What stands in a copy was in the log, also when it is not there any more."""
        if record["st"] != "ok":
            return
        partition = record["partition"]
        for sequence, (label, key, at) in enumerate(record["events"], record["first"]):
            written = Written(partition, sequence, label, key, at)
            known = self.at_place.setdefault((partition, sequence), written)
            if known is written:
                self.log.append(written)
            elif (known.label, known.key) != (label, key):
                self.changed.append((known, written))
            self.copied[partition].setdefault(sequence, record["t"])

    def steps(self, place: Place) -> Iterator[tuple[Position, Position]]:
        """Each row of a partition's ledger with the one before it."""
        rows = self.ledger[place]
        return pairwise(rows)

    def passed(self) -> Counter[tuple[str, int, int]]:
        """How often a commit has passed each event."""
        found: Counter[tuple[str, int, int]] = Counter()
        for place in list(self.ledger):
            for before, row in self.steps(place):
                if row.reason == "commit":
                    between = range(before.position + 1, row.position + 1)
                    found.update((*place, sequence) for sequence in between)
        return found

    def last_seek(self, place: Place, epoch: int) -> int:
        """The lease_epoch of the last seek up to one."""
        if place not in self._sought:
            rows = self.ledger[place]
            self._sought[place] = [r.epoch for r in rows if r.reason not in {"commit", "start"}]
        return max((each for each in self._sought[place] if each <= epoch), default=0)


class Reached:
    """How far commits that succeeded had come, by time and lease_epoch."""

    def __init__(self, run: Run) -> None:
        #: For each place and lease_epoch the times of answers, and the furthest position by then.
        self._by: dict[Place, dict[int, tuple[list[float], list[int]]]] = defaultdict(dict)
        for each in run.acknowledged:  # they are in the order of their times
            found = self._by[each["sub"], each["partition"]]
            times, positions = found.setdefault(each["epoch"], ([], []))
            times.append(each["t"])
            positions.append(max([each["position"], *positions[-1:]]))

    def before(self, moment: float, place: Place, first: int, last: int) -> int:
        """The furthest position that was committed before a moment, under these lease_epochs."""
        reached = 0
        for epoch, (times, positions) in self._by[place].items():
            if first <= epoch <= last and (count := bisect_left(times, moment)):
                reached = max(reached, positions[count - 1])
        return reached


def _transactions(by_op: dict[str, list[Record]]) -> dict[str, Transaction]:
    """What became of one that was staged and never confirmed, nobody knows."""
    found: dict[str, Transaction] = {}
    for record in by_op["publish"]:
        if record["st"] == "invoke":
            found[record["tx"]] = Transaction(begun=record["t"])
    for record in by_op["stage"]:
        transaction = found[record["tx"]]
        transaction.events = record["events"]
        transaction.undone = set(record["undone"])
        transaction.outcome = "info"
        transaction.staged = record["t"]
        transaction.strict = record.get("strict", False)
        transaction.keys = record.get("keys", {})
        transaction.duplicates = record.get("duplicates", [])
    for record in by_op["publish"]:
        if record["st"] != "invoke":
            found[record["tx"]].outcome = record["st"]
    for record in by_op["settle"]:  # in doubt, and settled by somebody else
        if record["st"] in {"ok", "fail"} and found[record["tx"]].outcome == "info":
            found[record["tx"]].outcome = record["st"]
    for record in [*by_op["publish"], *by_op["settle"]]:
        if record["st"] == "ok":
            found[record["tx"]].ended = min(found[record["tx"]].ended, record["t"])
    return found


def transaction_of(label: str) -> str:
    """The transaction of an event."""
    return label.rpartition("/")[0]
