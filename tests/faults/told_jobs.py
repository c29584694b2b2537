"""What is known of queues in a run: who got which event when, and what became of each receipt.

Like the checker it imports nothing of Penstock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
#: Subscription, partition, sequence.
Job = tuple[str, int, int]

#: What a receive of the last moments before a crash has done may be forgotten where its commit does
#: not wait for the disk; the server itself writes it down sooner than this.
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

    def may_give_away(self, after: HandOut) -> bool:
        """Whether it may have put the event back before it was handed out again."""
        gives = self.how in {"reject", "release"} or (self.how == "extend" and not self.seconds)
        return gives and self.outcome != "fail" and self.begun["t"] < after.told["t"]

    def gave(self, before: HandOut, after: HandOut) -> bool:
        """Whether it gave the event of one hand-out to the next: the counts say so, too.

        What is released is not counted, and what has failed is.  When a time was over instead, a
        delivery more is counted, and no failure.
        """
        if not self.may_give_away(after):
            return False
        if self.how == "release":
            return after.deliveries == before.deliveries
        return self.how == "reject" and after.failures == before.failures + 1


@dataclass(frozen=True, slots=True)
class Dead:
    """A dead letter."""

    job: Job
    attempts: int


@dataclass(frozen=True, slots=True)
class Crash:
    """A server that was killed where a receive does not wait for the disk."""

    begun: float
    #: When nothing of it lived any more.
    down: float
    #: When the last commit was sent that waited for the disk, and was answered: what was committed
    #: before it was on the disk with it, because they are written in their order.
    durable: float

    def may_undo(self, hand_out: HandOut) -> bool:
        """Whether it may have undone a hand-out: there was no time left to write it down."""
        is_late = self.begun - FORGOTTEN_SECONDS < hand_out.at <= self.down
        return is_late and self.durable <= hand_out.told["d"]


class Jobs:
    """All that is known of queues, sorted for the rules."""

    def __init__(self, by_op: Mapping[str, list[Record]], dump: dict[str, Any]) -> None:
        #: By name: order, effects (exact or least), limits, partitions, and what is left.
        self.queues: dict[str, dict[str, Any]] = dump.get("queues", {})
        self.hand_outs: dict[Job, list[HandOut]] = defaultdict(list)
        self._take_hand_outs(by_op["hand_out"])
        self.finishes: dict[str, list[Finish]] = defaultdict(list)
        self._take_finishes(by_op["finish"])
        for each in self.hand_outs.values():
            self._bring_in_order(each)
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
        self._crashes = self._undoing(by_op) if dump.get("forgets", False) else []
        self._passed = [(each["d"], each["seconds"]) for each in by_op["pass_time"]]

    def receipts_of(self, hand_out: HandOut) -> list[Finish]:
        """All calls with the receipt of a hand-out, and with those that renewed it."""
        return self.finishes[hand_out.receipt]

    def is_accepted(self, call: Finish) -> bool:
        """Whether the database did it: it said so, or nobody knows and the effect is there."""
        has_effect = call.how == "acknowledge" and call.receipt in self.done_by
        return call.outcome == "ok" or (call.outcome == "info" and has_effect)

    def forgotten(self, hand_out: HandOut, moment: float) -> bool:
        """Whether a crash before a moment may have undone a hand-out, and nothing says otherwise.

        What the database has accepted of it says that it remembers it.
        """
        if any(map(self.is_accepted, self.receipts_of(hand_out))):
            return False
        return any(each.down < moment and each.may_undo(hand_out) for each in self._crashes)

    def remembered_before(self, hand_outs: list[HandOut], after: HandOut) -> Iterator[HandOut]:
        """From the latest back, the hand-outs that may count, to the first one that does."""
        for each in reversed(hand_outs):
            yield each
            if not self.forgotten(each, after.at):
                return

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

    def _bring_in_order(self, hand_outs: list[HandOut]) -> None:
        """By their times, but where something says that those mislead."""
        hand_outs.sort(key=lambda hand_out: hand_out.at)
        for number in range(1, len(hand_outs)):
            place = number
            while place and self._came_first(hand_outs[place], hand_outs[place - 1]):
                hand_outs[place - 1 : place + 1] = reversed(hand_outs[place - 1 : place + 1])
                place -= 1

    def _came_first(self, other: HandOut, one: HandOut) -> bool:
        """Whether a hand-out came before one with an earlier time.

        A receive reads the clock first, and may wait.  It is told after the other one was, of an
        event that this one has given back by then, and the counts say that it was the next.
        """
        calls = self.receipts_of(other)
        return other.at <= one.told["d"] and any(each.gave(other, one) for each in calls)

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

    def _undoing(self, by_op: Mapping[str, list[Record]]) -> list[Crash]:
        crashes = (each["d"] for each in by_op["fault"] if each["fault"] == "crash")
        downs = [each["d"] for each in by_op["down"]]
        answered = [
            (call.sent_d, call.ended_d)
            for calls in self.finishes.values()
            for call in calls
            if call.how == "acknowledge" and call.outcome == "ok"
        ]
        found = []
        for begun in crashes:
            down = min((each for each in downs if each >= begun), default=begun)
            sent = (sent for sent, ended in answered if ended <= down)
            found.append(Crash(begun, down, max(sent, default=0.0)))
        return found

    def _unanswered(
        self, name: str, by_op: Mapping[str, list[Record]]
    ) -> tuple[list[float], list[float]]:
        begun = sorted(each["t"] for each in by_op["receive"] if each["sub"] == name)
        answered = sorted(each["t"] for each in by_op["hand_out"] if each["sub"] == name)
        return begun, answered
