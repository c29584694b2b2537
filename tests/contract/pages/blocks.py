"""The Python blocks of a page, and how they are run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def text_of(page: str) -> str:
    """A page, by its path from the root."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(page: str) -> list[str]:
    """Its Python blocks, in order."""
    return re.findall(r"```python\n(.*?)```", text_of(page), re.DOTALL)


def run(page: str, *blocks: str, **names: Any) -> dict[str, Any]:
    """One after the other, as on one prompt; returns what they have named.

    A loop that runs until it is told to end runs until nothing is left.
    """
    for block in blocks:
        text = block.replace(".run()", ".run_until_idle()")
        exec(compile(text, page, "exec", dont_inherit=True), names)
    return names
