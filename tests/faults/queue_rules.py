"""The checker's rules for queues.  Like it they import nothing of Penstock.

An event of a queue is done once or is a dead letter; nobody has it while another one may; a receipt
is good until its event is handed out again; counts grow as hand-outs and failures do; where keys
have an order, one event of a key is out at a time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from tests.faults.told import Anomaly, Run
from tests.faults.told_jobs import Dead, Finish, HandOut, Job

#: A time that the database read before it had a lock is not an order of time.
CLOCK_SLACK = 0.5


def handed_out(run: Run) -> Iterator[Anomaly]:
    """What is handed out is in the log, under its sequence, and was by then."""
    for job, hand_outs in run.jobs.hand_outs.items():
        written = run.at_place.get(job[1:])
        for each in hand_outs:
            if written is None or written.at > each.told["d"]:
                yield Anomaly("beyond-watermark", f"{job} was handed out")
            elif written.label != each.label:
                yield Anomaly("duplicate", f"{job} is {each.label} and {written.label}")


def hidden(run: Run) -> Iterator[Anomaly]:
    """Nobody gets an event while another one has it, unless that one gave it away."""
    for job, hand_outs in run.jobs.hand_outs.items():
        for number, after in enumerate(hand_outs):
            for before in run.jobs.remembered_before(hand_outs[:number], after):
                early = run.jobs.hidden_until(before, after.at) - after.told["d"]
                if early <= 0 or run.jobs.forgotten(before, after.at):
                    continue
                if not any(call.may_give_away(after) for call in run.jobs.receipts_of(before)):
                    what = f"{early:.3f} s before the time of {before.receipt} was over"
                    yield Anomaly("overlap", f"{job}: {after.receipt} {what}")


def fenced(run: Run) -> Iterator[Anomaly]:
    """A receipt works once, until its event is handed out again; what is finished stays so."""
    for job, hand_outs in run.jobs.hand_outs.items():
        for number, each in enumerate(hand_outs):
            accepted = [c for c in run.jobs.receipts_of(each) if run.jobs.is_accepted(c)]
            worked = Counter(call.receipt for call in accepted)
            for receipt, times in worked.items():
                if times > 1:
                    yield Anomaly("stale-accept", f"{job}: {receipt} worked {times} times")
            calls = {call.receipt for call in run.jobs.receipts_of(each)}
            for receipt in (calls - worked.keys()) & run.jobs.done_by:
                yield Anomaly("stale-accept", f"{job}: {receipt} was refused, and it is done")
            for call in accepted:
                yield from _behind(run, each, call, hand_outs[number + 1 :])


def _behind(run: Run, each: HandOut, call: Finish, later: list[HandOut]) -> Iterator[Anomaly]:
    """What was accepted of a receipt although, or before, somebody else got the event.

    A receive reads the clock first, and waits: its time may be before that of the call which has
    given it the event, and of those before that call.
    """
    was_given = bool(later) and any(
        other.gave(each, later[0])
        for other in run.jobs.receipts_of(each)
        if other is call or call.ended_d <= other.begun["d"]
    )
    ends = call.how == "acknowledge"
    for other in later:
        if was_given and other.told["d"] > call.begun["d"]:
            continue
        what = f"{each.job}: {call.how} of {call.begun['proc']}, and {other.receipt} is later"
        if other.at < call.sent_d - (0 if ends else CLOCK_SLACK):
            if not run.jobs.forgotten(other, call.sent_d):
                yield Anomaly("stale-accept", what)
        elif ends:
            yield Anomaly("nonmonotonic-poll", what)


def counted(run: Run) -> Iterator[Anomaly]:
    """Each hand-out counts and each failure does; what was given back unbegun does not."""
    for job, hand_outs in run.jobs.hand_outs.items():
        for number, each in enumerate(hand_outs):
            most = number + run.jobs.unknown(job[0], each.told["t"])  # this one, and others
            least = _least(run, hand_outs[:number], each)
            if not least <= each.deliveries <= most:
                what = f"delivery {each.deliveries}, not {least} to {most}"
                yield Anomaly("wrong-count", f"{job}: {what}")
            rejected = [c for c in _rejections(run, hand_outs) if c.begun["d"] < each.told["d"]]
            known = sum(c.outcome == "ok" and c.ended_d < each.at for c in rejected)
            if not known <= each.failures <= len(rejected):
                what = f"{each.failures} failures, not {known} to {len(rejected)}"
                yield Anomaly("wrong-count", f"{job}: {what}")


def _least(run: Run, hand_outs: list[HandOut], each: HandOut) -> int:
    for before in run.jobs.remembered_before(hand_outs, each):
        if not run.jobs.forgotten(before, each.at):
            calls = run.jobs.receipts_of(before)
            released = any(call.how == "release" and call.outcome != "fail" for call in calls)
            return before.deliveries + (0 if released else 1)
    return 1


def _rejections(run: Run, hand_outs: list[HandOut]) -> list[Finish]:
    """The failures of an event that were recorded, or of which nobody knows."""
    return [
        call
        for each in hand_outs
        for call in run.jobs.receipts_of(each)
        if call.how == "reject" and call.outcome != "fail"
    ]


def given_up(run: Run) -> Iterator[Anomaly]:
    """A dead letter has failed, or was handed out, as often as it may be, and says how often."""
    dead = Counter(each.job for each in run.jobs.dead)
    for letter in run.jobs.dead:
        if dead[letter.job] > 1 or not _has_reason(run, letter):
            yield Anomaly("wrong-count", f"{letter.job} is dead after {letter.attempts}")
    for job, hand_outs in run.jobs.hand_outs.items():
        failed = sum(each.outcome == "ok" for each in _rejections(run, hand_outs))
        if failed >= run.jobs.queues[job[0]]["max_failures"] and not dead[job]:
            yield Anomaly("wrong-count", f"{job} has failed {failed} times and is not dead")


def _has_reason(run: Run, letter: Dead) -> bool:
    settings = run.jobs.queues[letter.job[0]]
    if letter.attempts >= settings["max_deliveries"]:
        return True
    return any(
        each.deliveries == letter.attempts and each.failures + 1 >= settings["max_failures"]
        for each in run.jobs.hand_outs.get(letter.job, ())
        if any(call.outcome != "fail" for call in _rejections(run, [each]))
    )


def done_once(run: Run) -> Iterator[Anomaly]:
    """Each event of the log is done once or a dead letter; of the other kind, at least once."""
    done = Counter(job for job, *_ in run.jobs.done)
    dead = Counter(each.job for each in run.jobs.dead)
    for name, settings in run.jobs.queues.items():
        for each in run.log:
            begins = settings.get("begins", {}).get(str(each.partition), 1)
            if each.partition not in settings["partitions"] or each.sequence < begins:
                continue
            job = (name, each.partition, each.sequence)
            exact = settings["effects"] == "exact"
            times = done[job] if exact else min(run.jobs.handled[job], 1 - min(dead[job], 1))
            if times + dead[job] == 0:
                yield Anomaly("lost", f"{job} is neither done nor a dead letter")
            elif times + dead[job] > 1:
                yield Anomaly("duplicate-effect", f"{job}: done {times}, dead {dead[job]} times")
    for job, label, _ in run.jobs.done:
        written = run.at_place.get(job[1:])
        if written is None or written.label != label:
            yield Anomaly("duplicate", f"{label} was done as {job}")


def remembered(run: Run) -> Iterator[Anomaly]:
    """D2, D6: an acknowledgement that succeeded has its effect."""
    for job, hand_outs in run.jobs.hand_outs.items():
        if run.jobs.queues[job[0]]["effects"] != "exact":
            continue
        for call in (call for each in hand_outs for call in run.jobs.receipts_of(each)):
            is_answered = call.how == "acknowledge" and call.outcome == "ok"
            if is_answered and call.receipt not in run.jobs.done_by:
                yield Anomaly("lost", f"{job} was acknowledged and is not done")


def ordered(run: Run) -> Iterator[Anomaly]:
    """With order=key an event comes when the earlier ones of its key are at their end."""
    for name, settings in run.jobs.queues.items():
        if settings["order"] == "key":
            yield from _one_at_a_time(run, name)
            yield from _in_order(run, name)


def _one_at_a_time(run: Run, name: str) -> Iterator[Anomaly]:
    keys: dict[tuple[int, str], list[int]] = defaultdict(list)
    for each in sorted(run.log, key=lambda row: row.sequence):
        keys[each.partition, each.key].append(each.sequence)
    for (partition, key), sequences in keys.items():
        latest, last = float("-inf"), 0
        for sequence in sequences:
            job = (name, partition, sequence)
            for hand_out in run.jobs.hand_outs.get(job, ()):
                if hand_out.told["t"] < latest:
                    what = f"{job} of {key} came before the end of {last}"
                    yield Anomaly("order-per-key", what)
            ended = _ended(run, job)
            if ended > latest:
                latest, last = ended, sequence


def _ended(run: Run, job: Job) -> float:
    """When an event was finished, or failed for the last time; nothing is known of some."""
    finished = run.jobs.finished_at(job)
    if finished is not None:
        return finished
    failed = [call.begun["t"] for call in _rejections(run, run.jobs.hand_outs.get(job, []))]
    return max(failed, default=float("-inf"))


def _in_order(run: Run, name: str) -> Iterator[Anomaly]:
    """The effects as the database has them."""
    last: dict[tuple[int, str], int] = {}
    for (queue, partition, sequence), *_ in run.jobs.done:
        written = run.at_place.get((partition, sequence))
        if queue != name or written is None:
            continue
        key = (partition, written.key)
        if sequence < last.get(key, 0):
            yield Anomaly("order-per-key", f"{name}, {key}: {sequence} after {last[key]}")
        last[key] = max(last.get(key, 0), sequence)


def drained(run: Run) -> Iterator[Anomaly]:
    """L6: at the end nothing is ready, handed out or delayed."""
    for name, settings in run.jobs.queues.items():
        if any(settings["left"]):
            yield Anomaly("unseen", f"{name} has {settings['left']}: ready, in flight, delayed")


RULES: tuple[Callable[[Run], Iterator[Anomaly]], ...] = (
    handed_out, hidden, fenced, counted, given_up, done_once, remembered, ordered, drained,
)  # fmt: skip
