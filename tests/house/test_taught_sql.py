"""The SQL in docs and examples is safe to copy."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_no_page_teaches_to_publish_a_bytea_literal() -> None:
    """A backslash in '...'::bytea is an escape: publish_text and publish_json are there for it."""
    examples = [each for each in (ROOT / "examples").rglob("*.*") if each.suffix != ".pyc"]
    pages = [*(ROOT / "docs").rglob("*.md"), *examples]
    assert len(pages) > 10
    found = [
        f"{page.name}: {line}"
        for page in pages
        for line in page.read_text("utf-8").splitlines()
        if re.search(r"publish\w*\([^`]*'::bytea", line)
    ]
    assert not found
