"""Count the words of all pages: those that are written by hand, and those that are made from code.

A reader's time is for what is written. Run it as `python -m tools.words`; `make check` does, and
refuses more than the limit.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tools.check_house import tracked
from tools.made import written

ROOT = Path(__file__).resolve().parents[1]

#: The most words that may be written, tables and code included.
LIMIT = 80_000


def count(pages: Mapping[str, str]) -> tuple[int, int]:
    """The words that are written, and those that are made."""
    all_of_them = sum(len(page.split()) for page in pages.values())
    by_hand = sum(len(written(page).split()) for page in pages.values())
    return by_hand, all_of_them - by_hand


def main(root: Path = ROOT) -> int:
    """Print both counts, and compare the first with the limit."""
    pages = [path for path in tracked(root) if path.suffix == ".md"]
    by_hand, made = count({str(path): path.read_text("utf-8") for path in pages})
    print(f"words of pages: {by_hand:,} written, limit {LIMIT:,}; {made:,} made from code")
    return int(by_hand > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
