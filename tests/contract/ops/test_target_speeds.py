"""How fast each archive target is: a moving average that all runs share."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.database import call
from penstock.errors import InvalidArgument
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.kit.log import topic
from tests.kit.proof import proves


def note(own: Any, *seconds: float | None, target: str = "near") -> tuple[float, int]:
    """Measurements of a target, and what stands there then."""
    for each in seconds:
        call(own, "note_target_speed", target=target, seconds=each)
    found = {row[0]: (round(float(row[1]), 6), int(row[2])) for row in call(own, "target_speeds")}
    return found[target]


def test_a_fifth_of_each_copy_counts_and_a_failure_doubles(db: ContractDatabase) -> None:
    own = db.connect()
    assert list(call(own, "target_speeds")) == []
    assert note(own, 10) == (10, 0)
    assert note(own, 20) == (12.0, 0)
    assert note(own, 0) == (9.6, 0)
    assert note(own, None) == (60, 1), "a failure is never cheap"
    assert note(own, None) == (120, 2)
    assert note(own, *[None] * 10) == (3_600, 12), "and never for ever"
    assert note(own, 0) == (2_880, 0)
    assert note(own, None, target="Near") == (60, 1)
    assert note(own) == (2_880, 0)
    assert [row[0] for row in call(own, "target_speeds")] == ["Near", "near"]


@pytest.mark.parametrize(
    ("target", "seconds"), [("a b", 1.0), ("", 1.0), (None, 1.0), ("near", -1.0), ("near", 1e9)]
)
def test_what_no_target_can_be_is_refused(
    db: ContractDatabase, target: str | None, seconds: float
) -> None:
    own = db.connect()
    with pytest.raises(InvalidArgument):
        call(own, "note_target_speed", target=target, seconds=seconds)
    assert list(call(own, "target_speeds")) == []


def test_retention_that_asks_for_more_copies_than_targets_is_refused(db: ContractDatabase) -> None:
    """Guard: the count of targets in set_retention; of a policy that stands, too."""
    own = db.connect()
    topic(own, 1, "bank/accounts")

    def keep(copies: int, targets: list[str] | None) -> None:
        call(own, "set_retention", topic="bank/accounts", minimum_age_seconds=0, copies=copies,
             max_bytes=None, origin="hand", targets=targets)  # fmt: skip

    with pytest.raises(InvalidArgument, match="3 copies cannot lie on 2 targets"):
        keep(3, ["b", "a", "a"])
    keep(2, ["a", "b"])
    with pytest.raises(InvalidArgument, match="3 copies cannot lie on 2 targets"):
        keep(3, None)
    ((found,),) = [row[2:3] for row in call(own, "retention_of")]
    assert found == 2


NO_COUNT: Guard = {
    "postgres": ("set_retention", "IF cardinality(targets) BETWEEN 1 AND copies - 1", "IF false"),
    "mysql": ("set_retention", "IF JSON_LENGTH(named) BETWEEN 1 AND copies - 1", "IF FALSE"),
}


@proves("D10 on some of many targets", guard="the count of targets in set_retention")
def test_without_the_count_nothing_could_ever_be_removed(db: ContractDatabase) -> None:
    own = db.connect()
    topic(own, 1, "bank/accounts")
    without(db, NO_COUNT)
    call(own, "set_retention", topic="bank/accounts", minimum_age_seconds=0, copies=3,
         max_bytes=None, origin="hand", targets=["a", "b"])  # fmt: skip
    ((found,),) = [row[2:3] for row in call(own, "retention_of")]
    assert found == 3
