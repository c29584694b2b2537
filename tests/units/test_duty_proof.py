"""What an audit finds in a log that is not what was promised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from ops.duties.proof import Double, SeenEvents, Stretch, faults, joined, stretches, told
from tests.kit.proof import proves

_FIELDS: list[pa.Field[Any]] = [
    pa.field("partition", pa.int32()),
    pa.field("sequence", pa.int64()),
    pa.field("event_id", pa.string()),
    pa.field("created_at", pa.timestamp("us", "UTC")),
    pa.field("sequenced_at", pa.timestamp("us", "UTC")),
]
SCHEMA = pa.schema(_FIELDS)

#: sequence, created at, numbered at.
Row = tuple[int, int, int]


def batch(rows: Sequence[Row], partition: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "partition": partition, "sequence": sequence, "event_id": f"e{sequence}",
                "created_at": created, "sequenced_at": numbered,
            }
            for sequence, created, numbered in rows
        ],
        schema=SCHEMA,
    )  # fmt: skip


def good(first: int, last: int) -> list[Row]:
    return [(n, 10 * n, 10 * n + 5) for n in range(first, last + 1)]


def found(*batches: Sequence[Row]) -> list[Stretch]:
    return list(joined(each for rows in batches for each in stretches(batch(rows))))


def test_batches_of_a_whole_log_are_one_stretch() -> None:
    (one,) = found(good(1, 3), good(4, 4), good(5, 9))
    assert one == Stretch(0, 1, 9, 15, 95)
    assert not faults([one], 1, 9)


def test_stretches_of_tasks_may_come_in_any_order() -> None:
    assert not faults([*found(good(5, 9)), *found(good(1, 4))], 1, 9)


@proves("an audit finds what is wrong", guard="each check of the proof")
@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([*good(1, 3), *good(5, 9)], "the sequences 4 to 4 are missing"),
        (good(2, 9), "the sequences 1 to 1 are missing"),
        (good(1, 7), "the sequences 8 to 9 are missing"),
        (good(1, 10), "there are sequences up to 10, after the end 9"),
        ([*good(1, 4), *good(4, 9)], "the sequences 4 to 4 are there twice"),
        ([*good(1, 5), *good(2, 4), *good(6, 9)], "the sequences 2 to 4 are there twice"),
        ([*good(1, 4), (5, 10, 20), *good(6, 9)], "sequence 5 was numbered before the one before"),
        ([*good(1, 4), (5, 60, 55), *good(6, 9)], "sequence 5 was numbered before its event was"),
    ],
)
def test_a_fault_is_found(rows: list[Row], said: str) -> None:
    (first, *_) = faults(found(rows), 1, 9)
    assert said in first


def test_a_fall_of_time_between_tasks_is_found() -> None:
    late = [(n, 0, 1_000) for n in range(1, 5)]
    (only,) = faults([*found(good(5, 9)), *found(late)], 1, 9)
    assert only == "sequence 5 was numbered before the one before it"


def test_an_empty_range_has_no_fault() -> None:
    assert not faults([], 1, 0)


def test_one_event_under_two_sequences_is_found() -> None:
    seen = SeenEvents()
    assert not list(seen.add(batch(good(1, 3))))
    again = batch([(9, 20, 30)]).set_column(2, SCHEMA.field(2), pa.array(["e2"]))
    (double,) = seen.add(again)
    assert double == Double("e2", 0, 2, 0, 9)


def test_an_id_that_a_publisher_has_used_twice_is_no_fault() -> None:
    seen = SeenEvents()
    assert not list(seen.add(batch(good(1, 3))))
    again = batch([(4, 40, 45)]).set_column(2, SCHEMA.field(2), pa.array(["e2"]))
    assert not list(seen.add(again))


def test_only_the_first_faults_are_named() -> None:
    text = told([f"fault {n}" for n in range(25)])
    assert text.endswith("fault 9; and 15 more")
