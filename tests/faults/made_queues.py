"""Runs of queues written by hand, for the tests of the checker's rules: all of them are sound."""

from __future__ import annotations

from typing import Any

from tests.faults.test_checker import Made

VISIBLE = 10.0
#: The places of a record's event.
LABEL, RECEIPT, DELIVERIES, FAILURES, AT, DEADLINE = 2, 4, 5, 6, 7, 8


class MadeQueue(Made):
    """A run of one partition, written by hand: four events of a key, on queues of two kinds."""

    def __init__(self) -> None:
        super().__init__()
        common = {"max_failures": 2, "max_deliveries": 5, "partitions": [0], "left": [0, 0, 0]}
        self.dump |= {
            "subscriptions": {},
            "ledger": [],
            "done": [],
            "handled": [["shell", 0, sequence] for sequence in range(1, 5)],
            "queues": {
                "jobs": common | {"order": "key", "effects": "exact"},
                "shell": common | {"order": "none", "effects": "least"},
            },
        }
        self._calls = 0

    def hand_out(self, sequence: int, deliveries: int = 1, failures: int = 0) -> str:
        """Somebody is given an event."""
        label = self.dump["log"][sequence - 1][2]
        receipt = f"{len(self.records)}.{sequence}.x"
        self.record("receive", "invoke", sub="jobs")
        counts = [deliveries, failures, self.now, self.now + VISIBLE]
        self.record("hand_out", sub="jobs", events=[[0, sequence, label, "k", receipt, *counts]])
        return receipt

    def finish(self, how: str, receipt: str, st: str = "ok", **fields: Any) -> None:
        """A call with a receipt, and what became of it."""
        self._calls += 1
        call: dict[str, Any] = {"how": how, "receipt": receipt, "call": self._calls}
        self.record("finish", "invoke", **call, **fields)
        sequence = int(receipt.split(".")[1])
        if how == "acknowledge" and st == "ok":
            label = self.dump["log"][sequence - 1][2]
            self.dump["done"].append(["jobs", 0, sequence, label, receipt])
        self.record("finish", st, **call, **fields, sent=self.now, sent_d=self.now)

    def given(self, sequence: int, number: int = 0) -> list[Any]:
        """What was told of a hand-out of an event."""
        told = [e for r in self.records if r["op"] == "hand_out" for e in r["events"]]
        found: list[Any] = [each for each in told if each[1] == sequence][number]
        return found


def sound() -> MadeQueue:
    """One is done, one dies, one is taken from a paused worker, one is put back and extended."""
    made = MadeQueue()
    made.publish("a")
    made.publish("b")
    for label in ("a/0", "a/1", "b/0", "b/1"):
        made.write(label)
    made.finish("acknowledge", made.hand_out(1))
    made.finish("reject", made.hand_out(2))
    made.finish("reject", made.hand_out(2, 2, 1))
    made.dump["dead"].append(["jobs", 0, 2, 2, "it cannot be handled"])
    late = made.hand_out(3)
    made.tick(VISIBLE + 1)
    receipt = made.hand_out(3, 2)
    made.finish("acknowledge", late, "fail")
    made.finish("acknowledge", receipt)
    made.finish("release", made.hand_out(4))
    first = made.hand_out(4)
    made.finish("extend", first, seconds=30.0, renewed="99.4.y")
    made.finish("acknowledge", "99.4.y")
    return made


def unknown() -> MadeQueue:
    """A COMMIT whose answer was lost, and a receive; a crash forgets a hand-out, and its count."""
    made = sound()
    made.records[-1]["st"] = "info"
    made.publish("c")
    made.write("c/0")
    made.write("c/1")
    made.dump["handled"] += [["shell", 0, 5], ["shell", 0, 6]]
    made.record("receive", "invoke", sub="jobs")
    made.finish("acknowledge", made.hand_out(5, 2))
    made.dump["forgets"] = True
    made.hand_out(6)
    made.record("fault", fault="crash", victim="")
    made.records[-1]["d"] -= 1
    made.finish("acknowledge", made.hand_out(6))
    return made


def crashed(seconds: float = 0.5) -> MadeQueue:
    """A crash undoes that another worker got an event: the first one's receipt is good again."""
    made = sound()
    made.publish("c")
    made.write("c/0")
    made.write("c/1")
    made.dump["handled"] += [["shell", 0, 5], ["shell", 0, 6]]
    made.dump["forgets"] = True
    first = made.hand_out(5)
    made.tick(VISIBLE + 1)
    second = made.hand_out(5, 2)
    made.tick(seconds - 1)
    made.record("fault", fault="crash", victim="")
    made.record("down")
    made.finish("acknowledge", first)
    made.finish("acknowledge", second, "fail")
    made.finish("acknowledge", made.hand_out(6))
    return made


def waited(how: str = "release") -> MadeQueue:
    """A receive that waits gets, under its early time, what another one has given back since."""
    made = sound()
    made.publish("c")
    made.write("c/0")
    made.write("c/1")
    made.dump["handled"] += [["shell", 0, 5], ["shell", 0, 6]]
    begun = made.tick()
    made.finish(how, made.hand_out(5))
    receipt = made.hand_out(5, 1 + (how == "reject"), int(how == "reject"))
    made.given(5, 1)[AT:] = [begun, begun + VISIBLE]
    made.finish("acknowledge", receipt)
    made.finish("acknowledge", made.hand_out(6))
    return made


def waited_long(how: str = "release") -> MadeQueue:
    """The same of a receive that began when the other worker just had the event."""
    made = waited(how)
    first, second = made.given(5), made.given(5, 1)
    second[AT:] = [first[AT] + 0.1, first[DEADLINE] + 0.1]
    return made


def waited_beyond_extend() -> MadeQueue:
    """The same where the other worker had extended it before it gave it back."""
    made = waited()
    receipt = made.given(5)[RECEIPT]
    place = place_of(made, receipt) - 1
    for released in made.records[place : place + 2]:
        released["receipt"] = "98.5.y"
    made.finish("extend", receipt, seconds=VISIBLE, renewed="98.5.y")
    extend = [made.records.pop(), made.records.pop()][::-1]
    extend[1]["sent_d"] = made.records[place]["d"]
    for each in extend:
        each["t"] = each["d"] = made.records[place]["d"]
    made.records[place:place] = extend
    return made


def place_of(made: MadeQueue, receipt: str) -> int:
    """Where the outcome of a call stands."""
    return next(
        place
        for place, each in enumerate(made.records)
        if each["op"] == "finish" and each["st"] != "invoke" and each["receipt"] == receipt
    )
