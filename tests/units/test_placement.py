"""Where copies belong: spread by weight, and nothing moves that need not."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from datetime import UTC, datetime

import pytest

from ops.archive.placement import Placement
from penstock.errors import ConfigurationError
from penstock.records import LogEpoch
from tests.kit.placements import homes, on_each
from tests.kit.proof import proves

EPOCHS = [(partition, number) for partition in range(10) for number in range(1, 1_001)]
TOPIC = "bank/accounts//1"


def all_homes(placement: Placement) -> dict[tuple[int, int], tuple[str, ...]]:
    """Of ten thousand log epochs."""
    return {key: homes(placement, TOPIC, key) for key in EPOCHS}


def epoch(*targets: str) -> LogEpoch:
    """A sealed log epoch with copies on these targets."""
    sealed = (1, 10, 10, "", datetime.now(UTC), None)
    return LogEpoch("bank/accounts", 0, 1, *sealed, targets, TOPIC)


def test_the_order_is_the_same_everywhere_and_forever() -> None:
    """Guard: the hash; another one would put the copies of every existing log elsewhere."""
    placement = Placement({"a": 1, "b": 2, "c": 3}, 2, 1)
    found = ["".join(placement.order(TOPIC, 3, number)) for number in range(1, 9)]
    assert found == ["bca", "bca", "bac", "abc", "cab", "bca", "cab", "abc"]
    assert homes(placement, TOPIC, (3, 1)) == ("b", "c")


def test_copies_spread_evenly_by_weight() -> None:
    found = all_homes(Placement({"a": 1, "b": 1, "c": 2, "d": 4}, 1, 1))
    shares = Counter(name for names in found.values() for name in names)
    for name, share in {"a": 1 / 8, "b": 1 / 8, "c": 1 / 4, "d": 1 / 2}.items():
        assert shares[name] / len(EPOCHS) == pytest.approx(share, rel=0.06)
    equal = Placement({"a": 1, "b": 1, "c": 1}, 2, 1)
    shares = Counter(name for names in all_homes(equal).values() for name in names)
    assert all(share / len(EPOCHS) == pytest.approx(2 / 3, rel=0.03) for share in shares.values())
    assert all(len(set(names)) == 2 for names in all_homes(equal).values())


@proves("D10 on some of many targets")
@pytest.mark.parametrize("copies", [1, 2])
def test_a_target_that_comes_or_goes_moves_its_own_share_only(copies: int) -> None:
    """Guard: a score depends on its own target alone."""
    three = all_homes(Placement({"a": 1, "b": 1, "c": 1}, copies, 1))
    four = all_homes(Placement({"a": 1, "b": 1, "c": 1, "d": 1}, copies, 1))
    moved = 0
    for key in EPOCHS:
        gone, come = set(three[key]) - set(four[key]), set(four[key]) - set(three[key])
        assert come <= {"d"}
        assert len(gone) == len(come)
        assert [name for name in four[key] if name != "d"] == list(three[key][: copies - len(come)])
        moved += len(come)
    assert moved / (copies * len(EPOCHS)) == pytest.approx(1 / 4, rel=0.05)
    heavier = all_homes(Placement({"a": 1, "b": 1, "c": 2}, copies, 1))
    assert all(set(heavier[key]) - set(three[key]) <= {"c"} for key in EPOCHS)


@proves("D10 on some of many targets", guard="the score of one target")
def test_by_the_number_of_targets_nearly_all_would_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the score of each target alone: hash modulo the number of targets."""

    def order(self: Placement, known_as: str, partition: int, log_epoch: int) -> tuple[str, ...]:
        names = sorted(self.targets)
        start = zlib.crc32(f"{known_as}/{partition}/{log_epoch}".encode()) % len(names)
        return tuple(names[start:] + names[:start])

    monkeypatch.setattr(Placement, "order", order)
    with pytest.raises(AssertionError):
        test_a_target_that_comes_or_goes_moves_its_own_share_only(1)


def test_what_lacks_a_copy_gets_it_on_its_homes_first_and_stand_ins_count() -> None:
    placement = Placement({"a": 1, "b": 1, "c": 1}, 2, 1)
    first, second, third = placement.order(TOPIC, 0, 1)
    assert placement.lacking(epoch()) == (first, second)
    assert placement.lacking(epoch(second)) == (first,)
    assert placement.lacking(epoch(third)) == (first,)
    assert placement.lacking(epoch(second, third)) == ()
    assert placement.held(epoch(second, third)) == (second, third)
    assert placement.lacking(epoch("gone", first)) == (second,), "a target that has left the policy"
    assert on_each("a", "b").lacking(epoch("c")) == tuple(on_each("a", "b").order(TOPIC, 0, 1))


def test_it_copies_what_it_was_given() -> None:
    given = {"a": 1, "b": 1}
    placement = Placement(given, 2, 2)
    given.clear()
    assert dict(placement.targets) == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("targets", "copies", "quorum", "seconds", "said"),
    [
        ({}, 0, 0, 1, "no target is named"),
        ({"a": 0}, 1, 1, 1, "the weight of the target a is 0"),
        ({"a": 1}, 0, 1, 1, "0 copies cannot lie on 1 targets"),
        ({"a": 1}, 2, 1, 1, "2 copies cannot lie on 1 targets"),
        ({"a": 1, "b": 1}, 2, 0, 1, "an ack_quorum of 0 cannot be reached with 2 copies"),
        ({"a": 1, "b": 1}, 1, 2, 1, "an ack_quorum of 2 cannot be reached with 1 copies"),
        ({"a": 1}, 1, 1, 0, "a copy_timeout of 0 s"),
    ],
)
def test_an_impossible_placement_is_refused(
    targets: dict[str, int], copies: int, quorum: int, seconds: float, said: str
) -> None:
    """Guard: each check of Placement."""
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        Placement(targets, copies, quorum, seconds)
