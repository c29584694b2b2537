"""The checker's rules for queues judge themselves: a sound run is sound, each bad one is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults import queue_rules
from tests.faults.made_queues import (
    AT,
    DEADLINE,
    DELIVERIES,
    FAILURES,
    LABEL,
    RECEIPT,
    VISIBLE,
    MadeQueue,
    crashed,
    place_of,
    sound,
    unknown,
    waited,
    waited_beyond_extend,
    waited_long,
)
from tests.faults.needed import assert_needed
from tests.kit.proof import proves

SOUND = [sound, unknown, crashed, waited, waited_long, waited_beyond_extend]
SOUND += [lambda: waited("reject"), lambda: waited_long("reject")]


@pytest.mark.parametrize("run", SOUND)
def test_a_sound_run_has_no_anomaly(run: Callable[[], MadeQueue]) -> None:
    assert run().kinds() == set()


def not_in_the_log(made: MadeQueue) -> None:
    made.given(4, 1)[1] = 9


def of_another_event(made: MadeQueue) -> None:
    made.given(4, 1)[LABEL] = "b/0"


def out_twice_at_a_time(made: MadeQueue) -> None:
    told = [each for each in made.records if each["op"] == "hand_out" if each["events"][0][1] == 3]
    told[1]["d"] = made.given(3, 1)[AT] = told[0]["events"][0][DEADLINE] - 2


def out_while_it_is_extended(made: MadeQueue) -> None:
    """The extension is good for thirty seconds, and its event comes after ten."""
    acknowledged = made.records[-2:]
    del made.records[-2:]
    made.tick(VISIBLE + 1)
    made.hand_out(4, 2)
    made.records += acknowledged


def stale(made: MadeQueue) -> None:
    """The paused worker's receipt works."""
    _outcome_of(made, made.given(3)[RECEIPT], "ok")


def stale_rejection(made: MadeQueue) -> None:
    made.finish("reject", made.given(3)[RECEIPT])


def stale_by_its_effect(made: MadeQueue) -> None:
    """Nobody knows the outcome of its COMMIT, but the effect is there, and not the other one's."""
    late, rightful = made.given(3)[RECEIPT], made.given(3, 1)[RECEIPT]
    _outcome_of(made, late, "info")
    _outcome_of(made, rightful, "fail")
    row = next(row for row in made.dump["done"] if row[4] == rightful)
    row[4] = late


def refused_and_done(made: MadeQueue) -> None:
    _outcome_of(made, made.given(1)[RECEIPT], "fail")


def works_twice(made: MadeQueue) -> None:
    made.finish("release", made.given(4)[RECEIPT])


def comes_again(made: MadeQueue) -> None:
    made.tick(VISIBLE + 1)
    made.finish("acknowledge", made.hand_out(1, 2), "fail")


def not_counted(made: MadeQueue) -> None:
    made.given(3, 1)[DELIVERIES] = 1


def counted_twice(made: MadeQueue) -> None:
    made.given(3, 1)[DELIVERIES] = 3


def failure_not_counted(made: MadeQueue) -> None:
    made.given(2, 1)[FAILURES] = 0


def failure_of_nobody(made: MadeQueue) -> None:
    made.given(3, 1)[FAILURES] = 1


def dead_too_soon(made: MadeQueue) -> None:
    made.dump["dead"][0][3] = 1


def dead_for_nothing(made: MadeQueue) -> None:
    made.dump["dead"].append(["jobs", 0, 1, 1, ""])


def dies_never(made: MadeQueue) -> None:
    """It has failed twice, and is handed out and done."""
    made.dump["dead"].clear()
    made.finish("acknowledge", made.hand_out(2, 3, 2))


def lost(made: MadeQueue) -> None:
    """Its worker was killed, and nobody has had it since."""
    made.dump["done"].pop(0)
    del made.records[place_of(made, made.given(1)[RECEIPT])]


def twice(made: MadeQueue) -> None:
    made.dump["done"].append(made.dump["done"][0])


def dead_and_done(made: MadeQueue) -> None:
    made.dump["done"].append(["jobs", 0, 2, "a/1", "1.2.z"])


def another_one_done(made: MadeQueue) -> None:
    made.dump["done"][0][3] = "b/0"


def never_handled(made: MadeQueue) -> None:
    made.dump["handled"].pop()


def acknowledged_without_effect(made: MadeQueue) -> None:
    """The row is there, but not of him who was told that it is."""
    made.dump["done"][0][4] = "somebody else"


def before_its_turn(made: MadeQueue) -> None:
    """It was told of before the end of the one before it in its key was sent."""
    told = [each for each in made.records if each["op"] == "hand_out"]
    second = next(each for each in told if each["events"][0][1] == 2)
    first = next(each for each in told if each["events"][0][1] == 1)
    second["t"] = first["t"] + 0.5


def done_before_its_turn(made: MadeQueue) -> None:
    done = made.dump["done"]
    done[0], done[1] = done[1], done[0]


def left_over(made: MadeQueue) -> None:
    made.dump["queues"]["jobs"]["left"] = [0, 1, 0]


def _outcome_of(made: MadeQueue, receipt: str, st: str) -> None:
    made.records[place_of(made, receipt)]["st"] = st


BAD: list[tuple[str, Callable[[MadeQueue], None]]] = [
    ("beyond-watermark", not_in_the_log),
    ("duplicate", of_another_event),
    ("overlap", out_twice_at_a_time),
    ("overlap", out_while_it_is_extended),
    ("stale-accept", stale),
    ("stale-accept", stale_rejection),
    ("stale-accept", stale_by_its_effect),
    ("stale-accept", refused_and_done),
    ("stale-accept", works_twice),
    ("nonmonotonic-poll", comes_again),
    ("wrong-count", not_counted),
    ("wrong-count", counted_twice),
    ("wrong-count", failure_not_counted),
    ("wrong-count", failure_of_nobody),
    ("wrong-count", dead_too_soon),
    ("wrong-count", dead_for_nothing),
    ("wrong-count", dies_never),
    ("lost", lost),
    ("duplicate-effect", twice),
    ("duplicate-effect", dead_and_done),
    ("duplicate", another_one_done),
    ("lost", never_handled),
    ("lost", acknowledged_without_effect),
    ("order-per-key", before_its_turn),
    ("order-per-key", done_before_its_turn),
    ("unseen", left_over),
]


@pytest.mark.parametrize(("kind", "spoil"), BAD, ids=lambda each: getattr(each, "__name__", each))
def test_a_bad_run_is_seen(kind: str, spoil: Callable[[MadeQueue], None]) -> None:
    """One bad history for each class, and for each rule that can find it."""
    made = sound()
    spoil(made)
    assert kind in made.kinds()


def of_an_engine_that_forgets_nothing(made: MadeQueue) -> None:
    made.dump["forgets"] = False


def it_did_not_crash(made: MadeQueue) -> None:
    made.records = [each for each in made.records if each["op"] != "fault"]


def it_crashed_before(made: MadeQueue) -> None:
    """What was handed out since is remembered."""
    for each in made.records:
        if each["op"] in {"fault", "down"}:
            each["d"] -= 5


def it_crashed_behind(made: MadeQueue) -> None:
    """The receipt worked before the crash."""
    for each in made.records:
        if each["op"] in {"fault", "down"}:
            each["d"] += 5


def the_disk_has_it(made: MadeQueue) -> None:
    """The commit of another one was answered after the hand-out, before the server was away."""
    place = next(n for n, each in enumerate(made.records) if each["op"] == "fault")
    made.now = made.records[place]["d"] - 1.75
    later = made.records[place:]
    del made.records[place:]
    made.write("z/0")
    made.publish("z")
    receipt = made.hand_out(7)
    made.finish("acknowledge", receipt)
    for number, each in enumerate(made.records[place:]):
        each["d"] = each["t"] = made.given(5, 1)[AT] + 1.1 + number / 100
    made.records[-1]["sent"] = made.records[-1]["sent_d"] = made.records[-1]["d"]
    made.dump["handled"].append(["shell", 0, 7])
    made.records += later


def the_undone_receipt_works_too(made: MadeQueue) -> None:
    _outcome_of(made, made.given(5, 1)[RECEIPT], "ok")


def it_came_again_since(made: MadeQueue) -> None:
    """Somebody else got the event after the crash, and the first receipt worked after that."""
    accepted = place_of(made, made.given(5)[RECEIPT])
    begun = made.records.pop(accepted - 1)
    outcome = made.records.pop(accepted - 1)
    receipt = made.hand_out(5, 2)
    made.finish("acknowledge", receipt, "fail")
    for each in (begun, outcome):
        each["t"] = each["d"] = made.tick()
    outcome["sent"] = outcome["sent_d"] = made.now
    made.records += [begun, outcome]


def another_stale_one(made: MadeQueue) -> None:
    """Beside what a crash explains."""
    stale(made)


@proves("D5, D6, D7, D9 in queues at scale", guard="the checker's rules")
@pytest.mark.parametrize(
    "spoil",
    [
        of_an_engine_that_forgets_nothing, it_did_not_crash, it_crashed_before, it_crashed_behind,
        the_disk_has_it, the_undone_receipt_works_too, it_came_again_since, another_stale_one,
    ],
)  # fmt: skip
def test_what_no_crash_explains_is_stale(spoil: Callable[[MadeQueue], None]) -> None:
    """A receipt works although a later hand-out is not undone: for each reason of its own."""
    made = crashed()
    spoil(made)
    assert "stale-accept" in made.kinds()


def it_was_put_back_when_the_other_was_told(made: MadeQueue) -> None:
    """Its time was over before, and then it was counted."""
    made.given(5)[DELIVERIES] = 2


def nobody_put_it_back(made: MadeQueue) -> None:
    place = place_of(made, made.given(5)[RECEIPT])
    del made.records[place - 1 : place + 1]


def it_was_told_first(made: MadeQueue) -> None:
    """The other one's receive began when this worker had the event."""
    told = [each for each in made.records if each["op"] == "hand_out"]
    first = next(each for each in told if each["events"][0][1] == 5)
    second = told[-1]
    second["t"] = second["d"] = first["d"] - 0.5


@proves("D5, D6, D7, D9 in queues at scale", guard="the checker's rules")
@pytest.mark.parametrize(
    "spoil", [it_was_put_back_when_the_other_was_told, nobody_put_it_back, it_was_told_first]
)
def test_a_receipt_that_only_seems_to_have_waited_is_stale(
    spoil: Callable[[MadeQueue], None],
) -> None:
    """The time of a hand-out counts where nothing says that another one had given the event back.

    A worker that was paused before it was told looks the same but for that.
    """
    made = waited()
    spoil(made)
    # Whose receive began with the event taken: then its count is wrong, too.
    assert made.kinds() & {"stale-accept", "wrong-count"}


@pytest.mark.parametrize("run", [waited, waited_long])
@pytest.mark.parametrize("how", ["release", "reject"])
def test_a_receipt_of_who_gave_it_back_is_stale(run: Callable[[str], MadeQueue], how: str) -> None:
    """Beside what a wait explains: who has given an event back finishes it all the same."""
    made = run(how)
    made.finish("acknowledge", made.given(5)[RECEIPT])
    assert "stale-accept" in made.kinds()


def test_a_receipt_of_who_gave_it_back_extends_nothing() -> None:
    made = waited()
    made.finish("extend", made.given(5)[RECEIPT], seconds=VISIBLE)
    assert "stale-accept" in made.kinds()


@pytest.mark.parametrize(("how", "failures"), [("release", 0), ("reject", 0)])
def test_who_gives_back_what_another_one_has_is_seen(how: str, failures: int) -> None:
    """The time of the first one was over, as the counts say: its receipt was stale."""
    made = waited_long(how)
    second = made.given(5, 1)
    second[DELIVERIES], second[FAILURES] = 2, failures
    assert "stale-accept" in made.kinds()


@proves("D5, D6, D7, D9 in queues at scale", guard="the checker's rules")
@pytest.mark.parametrize("spoil", [out_twice_at_a_time, out_while_it_is_extended])
def test_what_was_handed_out_after_a_crash_is_not_forgotten(
    spoil: Callable[[MadeQueue], None],
) -> None:
    """A crash undoes what was done shortly before it, and nothing of the hours after it."""
    made = sound()
    made.dump["forgets"] = True
    made.records.insert(0, made.records[0] | {"op": "fault", "fault": "crash", "d": 99.0})
    assert made.kinds() == set()
    spoil(made)
    assert "overlap" in made.kinds()


@proves("D5, D6, D7, D9 in queues at scale", guard="the checker's rules")
@pytest.mark.parametrize(("begins", "kinds"), [(2, set()), (1, {"lost"})])
def test_a_queue_that_begins_late_owes_what_came_since(begins: int, kinds: set[str]) -> None:
    """It was never given the first event, and whether that is lost depends on where it began."""
    made = sound()
    made.dump["queues"]["late"] = made.dump["queues"]["shell"] | {"begins": {"0": begins}}
    made.dump["handled"] += [["late", 0, sequence] for sequence in range(2, 5)]
    assert made.kinds() == kinds


@proves("D5, D6, D7, D9 in queues at scale", guard="the checker's rules")
@proves("D5, D6, D7 in queues under faults", guard="the checker's rules")
@pytest.mark.parametrize("rule", queue_rules.RULES, ids=lambda rule: rule.__name__)
def test_each_rule_is_needed(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the checker without the rule; at least one bad run is then taken for less bad."""
    assert_needed(rule, queue_rules, BAD, sound, monkeypatch)
