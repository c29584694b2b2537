"""What is known of queues in a run: who got which event when, and what became of each receipt.

Like the checker it imports nothing of Penstock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
#: Subscription, partition, sequence.
Job = tuple[str, int, int]

#: What a receive of the last moments before a crash has done may be forgotten where its commit does
#: not wait for the disk.
FORGOTTEN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class HandOut:
    """One delivery of an event, as its worker was told.  ``at`` is when the database made it."""

    told: Record
    job: Job
    label: str
    key: str
    receipt: str
    deliveries: int
    failures: int
    at: float
    deadline: float


@dataclass(slots=True)
class Finish:
    """A call with one receipt: acknowledge, reject, release or extend, and what became of it."""

    how: str
    receipt: str
    begun: Record
    outcome: str = "info"
    #: When a COMMIT of it was sent, or it was called; by the monotonic and by the real-time clock.
    sent: float = 0.0
    sent_d: float = 0.0
    #: When its outcome was known, by the real-time clock.
    ended_d: float = float("inf")
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Dead:
    """A dead letter."""

    job: Job
    attempts: int


class Jobs:
    """All that is known of queues, sorted for the rules."""

    def __init__(self, by_op: Mapping[str, list[Record]], dump: dict[str, Any]) -> None:
        #: By name: order, effects (exact or least), limits, partitions, and what is left.
        self.queues: dict[str, dict[str, Any]] = dump.get("queues", {})
        self.hand_outs: dict[Job, list[HandOut]] = defaultdict(list)
        self._take_hand_outs(by_op["hand_out"])
        self.finishes: dict[str, list[Finish]] = defaultdict(list)
        self._take_finishes(by_op["finish"])
        #: In the order in which they were written.
        self.done: list[tuple[Job, str, str]] = [
            ((name, partition, sequence), label, receipt)
            for name, partition, sequence, label, receipt in dump.get("done", [])
        ]
        self.done_by = {receipt for *_, receipt in self.done}
        self.handled = Counter((*row,) for row in dump.get("handled", []))
        rows = [row for row in dump["dead"] if row[0] in self.queues]
        self.dead = [Dead((name, part, sequence), n) for name, part, sequence, n, *_ in rows]
        self._asked = {name: self._unanswered(name, by_op) for name in self.queues}
        forgets = dump.get("forgets", False)
        self._crashes = [
            each["d"] for each in by_op["fault"] if forgets and each["fault"] == "crash"
        ]
        self._passed = [(each["d"], each["seconds"]) for each in by_op["pass_time"]]

    def receipts_of(self, hand_out: HandOut) -> list[Finish]:
        """All calls with the receipt of a hand-out, and with those that renewed it."""
        return self.finishes[hand_out.receipt]

    def is_accepted(self, call: Finish) -> bool:
        """Whether the database did it: it said so, or nobody knows and the effect is there."""
        has_effect = call.how == "acknowledge" and call.receipt in self.done_by
        return call.outcome == "ok" or (call.outcome == "info" and has_effect)

    def forgotten(self, before: HandOut, after: HandOut) -> bool:
        """Whether a crash between two hand-outs may have undone the first."""
        return any(each - FORGOTTEN_SECONDS < before.at and each < after.at
                   for each in self._crashes)  # fmt: skip

    def hidden_until(self, hand_out: HandOut, now: float) -> float:
        """Until when an event is hidden at least, as far as its worker was told by now."""
        until = hand_out.deadline
        for call in self.receipts_of(hand_out):
            if call.how == "extend" and call.outcome == "ok" and call.ended_d < now:
                until = max(until, call.begun["d"] + call.seconds)
        return until - sum(seconds for d, seconds in self._passed if hand_out.at < d < now)

    def unknown(self, name: str, moment: float) -> int:
        """How many calls of receive had begun by a moment, and nobody had an answer."""
        begun, answered = self._asked[name]
        return bisect_left(begun, moment) - bisect_left(answered, moment)

    def finished_at(self, job: Job) -> float | None:
        """When the end of an event was sent first, by the monotonic clock; None when it is not."""
        ended = [
            call.sent
            for hand_out in self.hand_outs.get(job, ())
            for call in self.receipts_of(hand_out)
            if call.how == "acknowledge" and self.is_accepted(call)
        ]
        return min(ended, default=None)

    def _take_hand_outs(self, records: Iterable[Record]) -> None:
        for told in records:
            for partition, sequence, *event in told["events"]:
                job = (told["sub"], partition, sequence)
                self.hand_outs[job].append(HandOut(told, job, *event))
        for each in self.hand_outs.values():
            each.sort(key=lambda hand_out: hand_out.at)

    def _take_finishes(self, records: Iterable[Record]) -> None:
        calls: dict[tuple[str, int, int], Finish] = {}
        renewed: dict[str, str] = {}
        for record in records:
            name = (record["proc"], record["pid"], record["call"])
            if record["st"] == "invoke":
                calls[name] = Finish(
                    record["how"], record["receipt"], record, sent=record["t"],
                    sent_d=record["d"], seconds=record.get("seconds", 0.0),
                )  # fmt: skip
                continue
            call = calls[name]
            call.outcome, call.ended_d = record["st"], record["d"]
            call.sent = record.get("sent", call.sent)
            call.sent_d = record.get("sent_d", call.sent_d)
            if record.get("renewed"):
                renewed[record["renewed"]] = call.receipt
        for call in calls.values():
            receipt = call.receipt
            while receipt in renewed:
                receipt = renewed[receipt]
            self.finishes[receipt].append(call)

    def _unanswered(
        self, name: str, by_op: Mapping[str, list[Record]]
    ) -> tuple[list[float], list[float]]:
        begun = sorted(each["t"] for each in by_op["receive"] if each["sub"] == name)
        answered = sorted(each["t"] for each in by_op["hand_out"] if each["sub"] == name)
        return begun, answered
