"""The checker judges itself: a sound run is sound, and each class of anomaly has a bad run."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults import checker, queue_rules, told, told_jobs
from tests.faults.checker import check
from tests.faults.needed import assert_needed
from tests.kit.proof import proves

Dump = dict[str, Any]
#: The checker's own modules.
OWN = {"tests.faults", told.__name__, told_jobs.__name__}
Records = list[dict[str, Any]]


class Made:
    """A run of one partition, written by hand: three events, a take-over, two subscriptions."""

    def __init__(self) -> None:
        self.now = 100.0
        self.records: Records = []
        self.dump: Dump = {
            "subscriptions": {"exact": "exact", "least": "least"},
            "lease_seconds": 10.0,
            "log": [],
            "leases": [],
            "ledger": [["exact", 0, 0, 0, "start", 90.0], ["least", 0, 0, 0, "start", 90.0]],
            "effects": [],
            "dead": [],
        }

    def tick(self, seconds: float = 1.0) -> float:
        self.now += seconds
        return self.now

    def record(self, op: str, st: str = "ok", **fields: Any) -> None:
        begun = self.now
        self.tick()
        times = {"t0": begun, "d0": begun, "t": self.now, "d": self.now}
        self.records.append({"proc": "p", "pid": 1, "op": op, "st": st, **times, **fields})

    def publish(self, tx: str, *, undone: tuple[int, ...] = (), st: str = "ok") -> None:
        self.record("publish", "invoke", tx=tx)
        events = [f"{tx}/{number}" for number in range(2)]
        self.record("stage", tx=tx, events=events, undone=[f"{tx}/{number}" for number in undone])
        self.record("publish", st, tx=tx)

    def write(self, label: str, key: str = "k") -> None:
        sequence = len(self.dump["log"]) + 1
        self.dump["log"].append([0, sequence, label, key, self.tick()])

    def lease(self, sub: str, epoch: int, holder: str, change: str) -> None:
        self.dump["leases"].append([sub, 0, epoch, holder, change, self.tick()])

    def read(self, sub: str, epoch: int, *sequences: int) -> None:
        labels = {row[1]: row[2] for row in self.dump["log"]}
        events = [[each, labels[each]] for each in sequences]
        self.record("poll", sub=sub, partition=0, epoch=epoch, events=events)

    def commit(self, sub: str, epoch: int, after: int, position: int) -> None:
        labels = {row[1]: row[2] for row in self.dump["log"]}
        for sequence in range(after + 1, position + 1):
            if sub == "exact":
                self.dump["effects"].append([sub, 0, sequence, labels[sequence]])
            else:
                self.handle(sequence)
        fields: dict[str, Any] = {"sub": sub, "partition": 0, "epoch": epoch, "position": position}
        self.record("commit", "invoke", **fields)
        self.dump["ledger"].append([sub, 0, position, epoch, "commit", self.now])
        self.record("commit", **fields)

    def handle(self, sequence: int) -> None:
        labels = {row[1]: row[2] for row in self.dump["log"]}
        where: dict[str, Any] = {"sub": "least", "partition": 0, "sequence": sequence, "key": "k"}
        self.record("handle", label=labels[sequence], **where)

    def kinds(self) -> set[str]:
        return {each.kind for each in check(self.records, self.dump)}


def sound() -> Made:
    """Published, rolled back in part, read by a consumer that dies, done or given up."""
    made = Made()
    made.publish("a", undone=(1,))
    made.publish("b")
    made.publish("c", st="fail")
    made.publish("d", st="info")
    for label in ("a/0", "b/0", "b/1"):
        made.write(label)
    for sub in ("exact", "least"):
        made.record("join", sub=sub, consumer="one")
        made.lease(sub, 1, "one", "acquired")
        made.read(sub, 1, 1, 2)
        made.commit(sub, 1, 0, 2)
        made.tick(20)
        made.lease(sub, 1, "one", "expired")
        made.lease(sub, 2, "two", "acquired")
        made.read(sub, 2, 3)
        if sub == "exact":
            made.commit(sub, 2, 2, 3)
        else:
            made.dump["ledger"].append([sub, 0, 3, 2, "commit", made.tick()])
            made.dump["dead"].append([sub, 0, 3, 10, "it cannot be handled"])
        made.lease(sub, 2, "two", "released")
    return made


def sought() -> Made:
    """The same, and a seek back: events are read, and have their effect, once more."""
    made = sound()
    made.dump["leases"].append(["exact", 0, 3, "", "seek", made.tick()])
    made.dump["ledger"].append(["exact", 0, 1, 3, "seek", made.now])
    made.lease("exact", 4, "one", "acquired")
    made.read("exact", 4, 2, 3)
    made.commit("exact", 4, 1, 3)
    return made


def unknown_commit() -> Made:
    """A COMMIT whose answer was lost: read again, refused, and nothing is there twice."""
    made = sound()
    for each in made.records:
        if each["op"] == "commit" and each["st"] == "ok" and each["sub"] == "exact":
            each["st"] = "info"
    made.read("exact", 2, 3)
    return made


def cleaned() -> Made:
    """What all have passed is copied, and dropped: the dump begins after it."""
    made = sound()
    _dropped(made)
    made.dump["log"] = made.dump["log"][2:]
    return made


def kept_exactly() -> Made:
    """Strict, with a dedup key whose retry is a duplicate, and one that was settled."""
    made = sound()
    _with_key(made, "e", st="info")
    _with_key(made, "f", duplicates=[["f/0", "e/0"]])
    made.record("settle", tx="e")
    made.write("e/0")
    for sub in ("exact", "least"):
        made.lease(sub, 3, "three", "acquired")
        made.read(sub, 3, 4)
        made.commit(sub, 3, 3, 4)
    return made


@pytest.mark.parametrize("run", [sound, sought, unknown_commit, cleaned, kept_exactly])
def test_a_sound_run_has_no_anomaly(run: Callable[[], Made]) -> None:
    assert run().kinds() == set()


def lost_event(made: Made) -> None:
    made.publish("e")


def lost_effect(made: Made) -> None:
    made.dump["effects"].pop()


def lost_commit(made: Made) -> None:
    """The database was restarted and forgot commits that had succeeded."""
    made.read("exact", 2, 1)
    fields: dict[str, Any] = {"sub": "exact", "partition": 0, "epoch": 2, "position": 7}
    made.record("commit", **fields)


def never_handled(made: Made) -> None:
    made.records = [
        each for each in made.records if each["op"] != "handle" or each["sequence"] != 2
    ]


def torn(made: Made) -> None:
    made.write("d/1")


def duplicate(made: Made) -> None:
    made.write("b/1")


def gap(made: Made) -> None:
    made.dump["log"][-1][1] = 5


def rolled_back(made: Made) -> None:
    made.write("c/0")


def undone(made: Made) -> None:
    made.write("a/1")


def out_of_order(made: Made) -> None:
    """b had committed before e began, and stands after it."""
    made.publish("e")
    made.dump["log"] = [[0, n + 3, *row[2:]] for n, row in enumerate(made.dump["log"])]
    made.dump["log"] += [[0, 1, "e/0", "k", 101.0], [0, 2, "e/1", "k", 101.0]]


def handled_out_of_order(made: Made) -> None:
    first, second = [each for each in made.records if each["op"] == "handle"][:2]
    first["sequence"], second["sequence"] = 2, 1


def twice(made: Made) -> None:
    made.dump["effects"].append(made.dump["effects"][0])


def neither(made: Made) -> None:
    """Given up, and the copy is not there."""
    made.dump["dead"].clear()


def dead_and_done(made: Made) -> None:
    made.dump["dead"].append(["exact", 0, 1])


def dead_and_pending(made: Made) -> None:
    made.write("e/0")
    made.dump["dead"].append(["exact", 0, 4])


def skipped(made: Made) -> None:
    """A consumer goes on after an event that it never read, and commits it."""
    _change_poll(made, lambda events: events[1:])


def not_all_read(made: Made) -> None:
    """A commit ahead of what was read."""
    _change_poll(made, lambda events: events[:-1])


def hole(made: Made) -> None:
    made.write("e/0")
    made.write("e/1")
    made.read("exact", 2, 3, 5)


def again(made: Made) -> None:
    made.read("exact", 2, 2, 3)


def stale_rows(made: Made) -> None:
    """A commit of the first lease, accepted after one of the second."""
    made.dump["ledger"].append(["exact", 0, 4, 1, "commit", made.tick()])


def stale_in_time(made: Made) -> None:
    """Nobody has committed since, but the lease is over for a second."""
    rows = [row for row in made.dump["ledger"] if row[:2] == ["exact", 0]]
    ended = next(row for row in made.dump["leases"] if row[4] == "expired")
    rows[1][5] = ended[5] + 1


def stale_as_seen(made: Made) -> None:
    """The second holder has read when the first one's commit begins."""
    read = next(each for each in made.records if each["op"] == "poll" and each["epoch"] == 2)
    for each in made.records:
        if each["op"] == "commit" and each["epoch"] == 1 and each["sub"] == "exact":
            each["t0"], each["t"] = read["t"] + 1, read["t"] + 2


def without_a_lease(made: Made) -> None:
    made.dump["ledger"][-1][3] = 9


def two_holders(made: Made) -> None:
    made.dump["leases"] = [row for row in made.dump["leases"] if row[4] != "expired"]


def same_epoch(made: Made) -> None:
    made.dump["leases"].append(["exact", 0, 2, "one", "acquired", made.tick()])


def taken_from_the_living(made: Made) -> None:
    ended = next(row for row in made.dump["leases"] if row[4] == "expired")
    made.records.append(
        {"proc": "p", "op": "heartbeat", "st": "ok", "sub": "exact", "consumer": "one"}
        | dict.fromkeys(("t0", "d0", "t", "d"), ended[5] - 1)
    )


def backward(made: Made) -> None:
    made.dump["ledger"].append(["exact", 0, 2, 2, "commit", made.tick()])
    made.dump["ledger"].append(["exact", 0, 3, 2, "commit", made.tick()])


def beyond(made: Made) -> None:
    made.dump["ledger"].append(["exact", 0, 9, 2, "commit", made.tick()])


def too_early(made: Made) -> None:
    """An event was read before it had its sequence."""
    made.dump["log"][0][4] = 10_000.0


def strict_out_of_order(made: Made) -> None:
    """Two strict ones: f's COMMIT succeeded before e sent its own, but not before e began."""
    for tx in ("e", "f"):
        made.record("publish", "invoke", tx=tx)
    for tx in ("f", "e"):
        made.record("stage", tx=tx, events=[f"{tx}/0"], undone=[], strict=True)
        made.record("publish", tx=tx)
    for tx in ("e", "f"):
        made.write(f"{tx}/0")


def one_key_twice(made: Made) -> None:
    for tx in ("e", "f"):
        _with_key(made, tx)
        made.write(f"{tx}/0")


def duplicate_of_nothing(made: Made) -> None:
    """The key was claimed by a transaction that was rolled back, and its retry is a duplicate."""
    _with_key(made, "e", st="fail")
    _with_key(made, "f", duplicates=[["f/0", "e/0"]])


def settled_and_gone(made: Made) -> None:
    """In doubt, and committed by somebody else."""
    made.publish("e", st="info")
    made.record("settle", tx="e")


def settled_and_there(made: Made) -> None:
    """In doubt, and rolled back by somebody else."""
    made.publish("e", st="info")
    made.record("settle", "fail", tx="e")
    made.write("e/0")
    made.write("e/1")


def changed(made: Made) -> None:
    """A copy was made before a crash, and now its last sequence is another event."""
    made.record("copied", partition=0, first=2, events=[["b/0", "k", 1.0], ["b/9", "k", 1.0]])


def dropped_before_it_was_passed(made: Made) -> None:
    _dropped(made, when=0.0)


def dropped_without_a_copy(made: Made) -> None:
    _dropped(made, copies=1)


def gone_without_a_trace(made: Made) -> None:
    """Dropped, and its copy has not all of it."""
    _dropped(made, copies=1)
    made.dump["log"] = made.dump["log"][2:]


def _dropped(made: Made, *, copies: int = 2, when: float | None = None) -> None:
    """Two events are copied and dropped; of the one at the end the dump says nothing."""
    events = [[row[2], row[3], row[4]] for row in made.dump["log"][:copies]]
    made.record("copied", partition=0, first=1, events=events)
    made.record("cleaned", partition=0, low=3)
    if when is not None:
        made.records[-1]["d"] = when


def _with_key(
    made: Made, tx: str, *, st: str = "ok", duplicates: list[list[str]] | None = None
) -> None:
    made.record("publish", "invoke", tx=tx)
    undone = [label for label, _ in duplicates or []]
    made.record(
        "stage", tx=tx, events=[f"{tx}/0"], undone=undone, keys={f"{tx}/0": "once"},
        duplicates=duplicates or [],
    )  # fmt: skip
    made.record("publish", st, tx=tx)


def unseen(made: Made) -> None:
    made.publish("e")
    made.write("e/0")
    made.write("e/1")


def _change_poll(made: Made, change: Callable[[list[Any]], list[Any]]) -> None:
    first = next(each for each in made.records if each["op"] == "poll")
    first["events"] = change(first["events"])


BAD: list[tuple[str, Callable[[Made], None]]] = [
    ("lost", lost_event),
    ("lost", lost_effect),
    ("lost", lost_commit),
    ("lost", never_handled),
    ("torn", torn),
    ("duplicate", duplicate),
    ("gap", gap),
    ("aborted-read", rolled_back),
    ("aborted-read", undone),
    ("order-per-key", out_of_order),
    ("order-per-key", handled_out_of_order),
    ("duplicate-effect", twice),
    ("lost", neither),
    ("duplicate-effect", dead_and_done),
    ("dead-and-pending", dead_and_pending),
    ("poll-skip", skipped),
    ("poll-skip", not_all_read),
    ("int-poll-skip", hole),
    ("nonmonotonic-poll", again),
    ("stale-accept", stale_rows),
    ("stale-accept", stale_in_time),
    ("stale-accept", stale_as_seen),
    ("stale-accept", without_a_lease),
    ("overlap", two_holders),
    ("overlap", same_epoch),
    ("overlap", taken_from_the_living),
    ("backward-position", backward),
    ("beyond-watermark", beyond),
    ("beyond-watermark", too_early),
    ("unseen", unseen),
    ("order-per-key", strict_out_of_order),
    ("duplicate", one_key_twice),
    ("lost", duplicate_of_nothing),
    ("lost", settled_and_gone),
    ("aborted-read", settled_and_there),
    ("changed", changed),
    ("dropped-early", dropped_before_it_was_passed),
    ("dropped-early", dropped_without_a_copy),
    ("lost", gone_without_a_trace),
]


@proves("S9 to S13 on SQL", guard="the checker")
@proves("S1 to S6, S9 to S13, D9 under attack", guard="each rule of the checker")
@pytest.mark.parametrize(("kind", "spoil"), BAD, ids=lambda each: getattr(each, "__name__", each))
def test_a_bad_run_is_seen(kind: str, spoil: Callable[[Made], None]) -> None:
    """One bad history for each class, and for each rule that can find it."""
    made = sound()
    spoil(made)
    assert kind in made.kinds()


@proves("S9 to S13 on SQL", guard="the checker")
@proves("S1 to S6, S9 to S13, D9 under attack", guard="each rule of the checker")
@pytest.mark.parametrize("rule", checker.RULES, ids=lambda rule: rule.__name__)
def test_each_rule_is_needed(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the checker without the rule; at least one bad run is then taken for less bad."""
    assert_needed(rule, checker, BAD, sound, monkeypatch)


def test_it_knows_nothing_of_the_product() -> None:
    """It believes histories and dumps only."""
    parts = (checker, queue_rules, told, told_jobs)
    trees = [ast.parse(Path(str(each.__file__)).read_text()) for each in parts]
    imported = {
        name.partition(".")[0]
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None) or node.names[0].name]
        if name not in OWN
    }
    assert imported <= {
        "__future__",
        "bisect",
        "collections",
        "dataclasses",
        "itertools",
        "json",
        "pathlib",
        "sys",
        "typing",
    }
