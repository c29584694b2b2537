"""The table of promises in concepts.md, against the promises that tests name."""

from __future__ import annotations

import re
from pathlib import Path

from tools.invariants_page import is_about, promises, proofs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "concepts.md"
ROW = re.compile(r"^\| (D\d+) \| (.+) \| ([A-Z0-9, ]+) \|$", re.MULTILINE)
NUMBER = re.compile(r"\bD\d+\b")


def unproven(numbers: set[str]) -> set[str]:
    """Those of which no test says that it proves them."""
    named = {each.promise for each in proofs()}
    return {number for number in numbers if not any(is_about(name, number) for name in named)}


def test_each_promise_is_proven_and_none_is_missing() -> None:
    rows = {number: set(by.split(", ")) for number, _, by in ROW.findall(PAGE.read_text("utf-8"))}
    assert list(rows) == [f"D{n}" for n in range(1, 12)]
    assert {number: gaps for number, by in rows.items() if (gaps := unproven(by))} == {}
    named = {number for each in promises() for number in NUMBER.findall(each.name)}
    assert named <= set(rows), "concepts.md lacks a promise that tests/promises.toml names"
    assert {number for number in named if number not in rows[number]} == set()


def test_a_number_without_a_test_is_found() -> None:
    assert unproven({"S1", "S999"}) == {"S999"}


def test_settings_that_let_events_go_are_in_the_promise() -> None:
    """D5 and D9 name each setting by which a subscription or the log loses an event."""
    text = {number: promise for number, promise, _ in ROW.findall(PAGE.read_text("utf-8"))}
    ends = {"filter", "max_lag_seconds", "max_bytes", "age limit", "purge", "seek", "erasure"}
    assert {each for each in ends if each not in text["D5"]} == set()
    assert "archive: none" in text["D9"]
