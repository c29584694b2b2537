"""docs/invariants.md names only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tools.check_coverage import has_test

ROOT = Path(__file__).resolve().parents[2]
TEST = re.compile(r"`(tests/[^`]+\.py::\w+)`")


def test_every_test_that_is_named_is_there() -> None:
    """A renamed or deleted test leaves no claim behind."""
    named = TEST.findall((ROOT / "docs" / "invariants.md").read_text(encoding="utf-8"))
    assert len(named) > 60
    assert [node for node in named if not has_test(node, ROOT)] == []
