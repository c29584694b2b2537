"""Judges what happened: reads only recorded histories and a dump of the database.

It imports nothing of Penstock, so that it does not believe what Penstock believes.  Each rule is a
function over a :class:`Run` that names its anomalies by class:

- ``lost``: committed and not in the log, without its effect, or a commit that was answered is gone;
- ``torn``: a part of a transaction is in the log; ``duplicate``, ``gap``: twice, or none, there;
- ``aborted-read``: an event of a transaction or savepoint that was rolled back was seen;
- ``order-per-key``: what was committed before another began to publish comes after it, or a key's
  events were handled in another order;
- ``duplicate-effect``: an effect is there more often than positions say;
- ``poll-skip``, ``int-poll-skip``, ``nonmonotonic-poll``: reading left something out between two
  polls, within one, or gave what was done already;
- ``stale-accept``: a commit was accepted under a lease that had ended;
- ``overlap``: two holders of one partition, or a lease that was taken from the living;
- ``backward-position``, ``beyond-watermark``: a position that may not be;
- ``dead-and-pending``: a dead letter that no position passed; one that is done is a
  ``duplicate-effect``, and one that was passed and is neither done nor dead is ``lost``;
- ``changed``: a sequence stands for another event than before;
- ``dropped-early``: an event is gone that somebody had not passed, or of which there was no copy;
- ``unseen``: an event that nobody came to;
- ``wrong-count``: deliveries or failures of a queue's event that do not add up, or its dead letter.

The rules for queues are in :mod:`tests.faults.queue_rules`.

    python -m tests.faults.checker FOLDER

prints the verdict on a folder with histories (``*.jsonl``) and a ``dump.json``.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.faults import queue_rules
from tests.faults.told import Anomaly, Place, Reached, Run, transaction_of
from tests.faults.told_jobs import Record

#: Rows of lease_history and of positions carry times that were read a moment before their lock was
#: had or behind it; only what is further apart than this is an order of time.
CLOCK_SLACK = 0.5


def published(run: Run) -> Iterator[Anomaly]:
    """D1 to D3: all of what was committed is in the log, once, and nothing else."""
    places = Counter(each.label for each in run.log)
    for label, count in places.items():
        if count > 1:
            yield Anomaly("duplicate", f"event {label} has {count} sequences")
    for name, transaction in run.transactions.items():
        wanted = [each for each in transaction.events if each not in transaction.undone]
        missing = [each for each in wanted if not places[each]]
        if transaction.outcome == "ok" and missing:
            yield Anomaly("lost", f"{missing} of transaction {name} were committed")
        elif transaction.outcome == "info" and 0 < len(missing) < len(wanted):
            yield Anomaly("torn", f"{missing} of transaction {name} are not in the log")
    sequences: dict[int, list[int]] = defaultdict(list)
    for each in run.log:
        sequences[each.partition].append(each.sequence)
    for partition, found in sequences.items():
        if sorted(found) != list(range(1, len(found) + 1)):
            yield Anomaly("gap", f"partition {partition} has not 1 to {len(found)}")


def rolled_back(run: Run) -> Iterator[Anomaly]:
    """S1: what was rolled back is nowhere."""
    seen: dict[str, str] = {each.label: "the log" for each in run.log}
    seen |= {label: "a poll" for poll in run.polls for _, label in poll["events"]}
    seen |= {each["label"]: "a handler" for each in run.by_op["handle"]}
    seen |= dict.fromkeys(run.effect_labels, "an effect")
    seen |= {each.label: "a worker" for found in run.jobs.hand_outs.values() for each in found}
    for label, where in seen.items():
        transaction = run.transactions.get(transaction_of(label))
        if transaction is None or transaction.outcome == "fail" or label in transaction.undone:
            yield Anomaly("aborted-read", f"{label} was rolled back, and {where} has it")


def written_order(run: Run) -> Iterator[Anomaly]:
    """S6: of one key, what had committed before another began to publish comes first."""
    latest: dict[tuple[int, str], tuple[float, str]] = {}
    for each in sorted(run.log, key=lambda row: (row.partition, row.sequence)):
        transaction = run.transactions.get(transaction_of(each.label))
        if transaction is None:
            continue
        key = (each.partition, each.key)
        begun, label = latest.get(key, (float("-inf"), ""))
        if transaction.ended < begun:
            yield Anomaly("order-per-key", f"{each.label} stands behind {label}")
        latest[key] = max((transaction.begun, each.label), (begun, label))


def strict_order(run: Run) -> Iterator[Anomaly]:
    """D4 for strict events: what was committed before another's COMMIT was sent comes first."""
    latest: dict[tuple[int, str], tuple[float, str]] = {}
    for each in sorted(run.log, key=lambda row: (row.partition, row.sequence)):
        transaction = run.transactions.get(transaction_of(each.label))
        if transaction is None or not transaction.strict:
            continue
        key = (each.partition, each.key)
        staged, label = latest.get(key, (float("-inf"), ""))
        if transaction.ended < staged:
            yield Anomaly("order-per-key", f"{each.label}, strict, stands behind {label}")
        latest[key] = max((transaction.staged, each.label), (staged, label))


def deduplicated(run: Run) -> Iterator[Anomaly]:
    """A dedup key has one event at most, and who is told "duplicate" is told of one in the log."""
    labels = {each.label for each in run.log}
    first: dict[str, str] = {}
    for transaction in run.transactions.values():
        for label, key in transaction.keys.items():
            if label in labels and first.setdefault(key, label) != label:
                yield Anomaly("duplicate", f"{label} and {first[key]} have the key {key}")
        for label, named in transaction.duplicates:
            if named not in labels:
                yield Anomaly("lost", f"{label} is a duplicate of {named}, which is not there")


def unchanged(run: Run) -> Iterator[Anomaly]:
    """D3: a sequence that was copied stands for the same event ever after."""
    for known, other in run.changed:
        yield Anomaly("changed", f"{known} is {other} in a copy")


def dropped_when_done(run: Run) -> Iterator[Anomaly]:
    """D9: a low sequence moves over what all subscriptions have passed, and what has a copy."""
    for each in run.by_op["cleaned"]:
        partition, gone = each["partition"], each["low"] - 1
        copied = run.copied[partition]
        if any(copied.get(sequence, each["t"]) >= each["t"] for sequence in (gone, gone // 2 + 1)):
            yield Anomaly("dropped-early", f"partition {partition}: {gone} has no copy")
        for name in run.kinds:
            rows = run.ledger[name, partition]
            passed = [row.position for row in rows if row.at <= each["d"] + CLOCK_SLACK]
            if max(passed, default=0) < gone:
                yield Anomaly("dropped-early", f"{name} has not passed {gone} of {partition}")


def handled_order(run: Run) -> Iterator[Anomaly]:
    """D4 for handlers: the first time of each event of a key is after that of the one before."""
    last: dict[tuple[str, int, str], int] = {}
    first: set[tuple[str, int, int]] = set()
    for each in run.by_op["handle"]:
        place = (each["sub"], each["partition"])
        if any(row.reason not in {"commit", "start"} for row in run.ledger[place]):
            continue  # a seek may have left events out and come back to them
        if (*place, each["sequence"]) in first:
            continue
        first.add((*place, each["sequence"]))
        key = (*place, each["key"])
        if each["sequence"] < last.get(key, 0):
            yield Anomaly("order-per-key", f"{place}: {each['sequence']} after {last[key]}")
        last[key] = max(last.get(key, 0), each["sequence"])


def holders(run: Run) -> Iterator[Anomaly]:
    """S9 by the order of rows: one holder at a time, and every one under a new lease_epoch."""
    for place, changes in run.leases.items():
        held: tuple[str, int] | None = None
        newest = 0
        for each in changes:
            if each.change == "acquired":
                if held is not None:
                    yield Anomaly("overlap", f"{place}: {each} while {held} holds it")
                if each.epoch <= newest:
                    yield Anomaly("overlap", f"{place}: {each}, and lease_epoch {newest} was out")
                held = (each.holder, each.epoch)
            elif each.change in {"released", "expired"}:
                if held != (each.holder, each.epoch):
                    yield Anomaly("overlap", f"{place}: {each}, and {held} holds it")
                held = None
            elif each.change != "releasing":
                held = None
            newest = max(newest, each.epoch)


def stolen(run: Run) -> Iterator[Anomaly]:
    """S9 by the clock: no lease ends before the lease time that its holder was told."""
    alive: dict[tuple[str, str], list[tuple[float, float, bool]]] = defaultdict(list)
    for op in ("join", "heartbeat", "check_in", "leave", "end_lease"):
        for each in run.by_op[op]:
            if each["st"] == "ok":
                lives = op not in {"leave", "end_lease"}
                alive[each["sub"], each["consumer"]].append((each["d"], each["d0"], lives))
    for place, changes in run.leases.items():
        asked: dict[int, float] = {}
        for change in changes:
            if change.change == "releasing":
                asked[change.epoch] = change.at
            overdue = change.at >= asked.get(change.epoch, float("inf")) + run.release_seconds
            if change.change != "expired" or overdue:
                continue
            signs = [sign for sign in alive[place[0], change.holder] if sign[0] < change.at]
            _, last, lives = max(signs, default=(0.0, 0.0, False))
            if lives and change.at < last + run.lease_seconds:
                yield Anomaly(
                    "overlap", f"{place}: {change}, which was alive {change.at - last:.3f} s before"
                )


def fenced(run: Run) -> Iterator[Anomaly]:
    """S10 by the rows: every commit under a lease that was acquired, and had not ended."""
    for place, rows in run.ledger.items():
        acquired = {each.epoch for each in run.leases[place] if each.change == "acquired"}
        ended: dict[int, float] = {}
        for each in run.leases[place]:
            if each.change in {"released", "expired"}:
                ended[each.epoch] = each.at
            elif each.change not in {"acquired", "releasing"}:
                ended |= {epoch: each.at for epoch in acquired if epoch < each.epoch} | ended
        newest = 0
        for row in rows:
            if row.reason == "commit":
                late = row.at - ended.get(row.epoch, float("inf"))
                if row.epoch not in acquired:
                    yield Anomaly("stale-accept", f"{place}: {row} under no lease")
                elif row.epoch < newest:
                    yield Anomaly("stale-accept", f"{place}: {row} behind lease_epoch {newest}")
                elif late > CLOCK_SLACK:
                    yield Anomaly("stale-accept", f"{place}: {row} {late:.3f} s behind its lease")
            newest = max(newest, row.epoch)


def fenced_as_seen(run: Run) -> Iterator[Anomaly]:
    """S10 as clients saw it: nobody's COMMIT is sent after what a later holder was told."""
    seen: dict[Place, dict[int, float]] = defaultdict(dict)
    for each in [*run.polls, *run.acknowledged]:
        first = seen[each["sub"], each["partition"]]
        first[each["epoch"]] = min(first.get(each["epoch"], float("inf")), each["t"])
    for each in run.acknowledged:
        place = (each["sub"], each["partition"])
        later = [epoch for epoch, at in seen[place].items() if at < each.get("sent", each["t0"])]
        if max(later, default=0) > each["epoch"]:
            what = f"{each['proc']} at {each['position']} under {each['epoch']}"
            yield Anomaly("stale-accept", f"{place}: {what}, when {max(later)} was at work")


def forward(run: Run) -> Iterator[Anomaly]:
    """S11, S12: positions only move forward, and never beyond what had a sequence by then."""
    for place in list(run.ledger):
        for before, row in run.steps(place):
            if row.reason == "carried" and row.position != before.position:
                yield Anomaly("backward-position", f"{place}: {row} carried from {before}")
            elif row.reason == "commit" and row.position <= before.position:
                yield Anomaly("backward-position", f"{place}: {row} behind {before}")
            written = run.at_place.get((place[1], row.position))
            if row.position and row.reason == "commit" and (not written or written.at > row.at):
                yield Anomaly("beyond-watermark", f"{place}: {row}")


def remembered(run: Run) -> Iterator[Anomaly]:
    """D2: a commit that succeeded is in the ledger."""
    rows = {
        (place, row.epoch, row.position)
        for place, ledger in run.ledger.items()
        for row in ledger
        if row.reason == "commit"
    }
    for each in run.acknowledged:
        if ((each["sub"], each["partition"]), each["epoch"], each["position"]) not in rows:
            yield Anomaly("lost", f"the commit {each} was answered and is not there")


def polled(run: Run) -> Iterator[Anomaly]:
    """What one poll returns: of the log, in order, without a hole, not beyond its end."""
    for poll in run.polls:
        sequences = [sequence for sequence, _ in poll["events"]]
        if any(b != a + 1 for a, b in pairwise(sequences)):
            yield Anomaly("int-poll-skip", f"{poll['proc']} read {sequences}")
        for sequence, label in poll["events"]:
            written = run.at_place.get((poll["partition"], sequence))
            if written is None or written.at > poll["d"]:
                yield Anomaly("beyond-watermark", f"{poll['proc']} read {sequence}")
            elif written.label != label:
                yield Anomaly("duplicate", f"sequence {sequence} is {label} and {written.label}")


def polled_on(run: Run) -> Iterator[Anomaly]:
    """S13 between polls: each goes on where the one before ended, or after a stored position."""
    read_up_to: dict[tuple[str, Place, int], set[int]] = defaultdict(set)
    done = Reached(run)
    stored: dict[Place, dict[int, int]] = defaultdict(dict)
    for place, rows in run.ledger.items():
        for row in rows:
            stored[place][row.position] = min(row.epoch, stored[place].get(row.position, row.epoch))
    for poll in run.polls:
        if not poll["events"]:
            continue
        place, epoch = (poll["sub"], poll["partition"]), poll["epoch"]
        first = poll["events"][0][0]
        own = read_up_to[f"{poll['proc']}.{poll['pid']}", place, epoch]
        if first - 1 not in own and stored[place].get(first - 1, epoch + 1) > epoch:
            yield Anomaly("poll-skip", f"{place}: {poll['proc']} went on at {first}")
        reached = done.before(poll["t0"], place, run.last_seek(place, epoch), epoch)
        if first <= reached:
            yield Anomaly("nonmonotonic-poll", f"{place}: {first} again behind {reached}")
        own |= {sequence for sequence, _ in poll["events"]}


def covered(run: Run) -> Iterator[Anomaly]:
    """S13 for commits: who moved a position had read what lies between."""
    read: dict[tuple[Place, int], set[int]] = defaultdict(set)
    for poll in run.polls:
        lease = ((poll["sub"], poll["partition"]), poll["epoch"])
        read[lease] |= {sequence for sequence, _ in poll["events"]}
    for place in list(run.ledger):
        for before, row in run.steps(place):
            wanted = range(before.position + 1, row.position + 1)
            if row.reason == "commit" and not read[place, row.epoch].issuperset(wanted):
                yield Anomaly("poll-skip", f"{place}: {row} behind {before} was not all read")


def done_once(run: Run) -> Iterator[Anomaly]:
    """D5, D6, S16: for every time that a commit passed an event an effect or a dead letter.

    Of the other kind, at least one handler that came to its end, or a dead letter.
    """
    handled = {(each["sub"], each["partition"], each["sequence"]) for each in run.by_op["handle"]}
    passed = run.passed()
    passed.subtract(run.dead)
    for where, times in passed.items():
        if run.kinds[where[0]] == "least" and not run.dead[where] and where not in handled:
            yield Anomaly("lost", f"{where} was passed and not handled")
        elif run.kinds[where[0]] == "exact" and run.effects[where] < times:
            yield Anomaly("lost", f"{where} was passed {times} times, effects {run.effects[where]}")
    for where, times in run.effects.items():
        if times > passed[where]:
            yield Anomaly("duplicate-effect", f"{where}: {times}, passed {passed[where]} times")


def given_up(run: Run) -> Iterator[Anomaly]:
    """S16: what is a dead letter is not pending."""
    passed = run.passed()
    for where in run.dead:
        if not passed[where]:
            yield Anomaly("dead-and-pending", f"{where} is a dead letter, and was not passed")


def drained(run: Run) -> Iterator[Anomaly]:
    """L6: at the end nothing is left."""
    for place, rows in run.ledger.items():
        if rows[-1].position < run.ends[place[1]]:
            yield Anomaly("unseen", f"{place}: {rows[-1].position} of {run.ends[place[1]]}")


RULES: tuple[Callable[[Run], Iterator[Anomaly]], ...] = (
    published, rolled_back, written_order, strict_order, deduplicated, unchanged,
    dropped_when_done, handled_order, holders, stolen, fenced, fenced_as_seen,
    forward, remembered, polled, polled_on, covered, done_once, given_up, drained,
)  # fmt: skip


def check(records: Iterable[Record], dump: dict[str, Any]) -> list[Anomaly]:
    """Every anomaly of a run."""
    run = Run(records, dump)
    return [anomaly for rule in (*RULES, *queue_rules.RULES) for anomaly in rule(run)]


def read(folder: Path) -> tuple[list[Record], dict[str, Any]]:
    """The histories of a folder, whole lines only, and the dump."""
    records = []
    for file in sorted(folder.glob("*.jsonl")):
        whole, _, _ = file.read_text().rpartition("\n")
        records += [json.loads(line) for line in whole.splitlines()]
    return records, json.loads((folder / "dump.json").read_text())


def main(folder: str) -> int:
    """Print the verdict; 1 when there is an anomaly."""
    found = check(*read(Path(folder)))
    lines = [f"{each.kind}: {each.text}" for each in found]
    lines.append(str(dict(Counter(each.kind for each in found)) or "no anomaly"))
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
