"""The examples of docs/reference/testing.md run as they are on the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "testing.md").read_text(
    "utf-8"
)


def _page() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "testing.md", "exec"), names)
    return names


NAMES = _page()
TESTS = [name for name in NAMES if name.startswith("test_")]


def test_the_page_has_examples() -> None:
    assert len(TESTS) >= 5


@pytest.mark.parametrize("name", TESTS)
def test_an_example(name: str) -> None:
    NAMES[name]()


def test_what_a_failure_says_is_what_the_page_says() -> None:
    """To the letter."""
    _, connection = NAMES["make_log"]()
    NAMES["place_order"](connection, "Ada")
    with pytest.raises(AssertionError) as told:
        NAMES["assert_published"](connection, "shop/orders", key="Bob")
    assert f"```text\n{told.value}\n```" in PAGE
