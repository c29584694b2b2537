"""Write the table of calls of `docs/reference/gateway.md`, from the gateway's operations.

Run it as `python -m tools.gateway_page`; with `--check` it writes nothing and exits with 1 when the
page is stale.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from consumers.gateway.app import OPERATIONS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "gateway.md"
_HEAD = ["| method | path | level | codes | what it does |", "|---|---|---|---|---|"]
_TABLE = re.compile(re.escape(_HEAD[0]) + r"\n(?:\|.*\n)+")


def table() -> str:
    """The table of calls, as the page has to have it."""
    lines = [
        f"| {each.method} | `{each.path.replace(':path', '')}` | {each.levels}"
        f" | {', '.join(map(str, sorted(each.answers)))} | {each.about} |"
        for each in OPERATIONS
    ]
    return "\n".join([*_HEAD, *lines, ""])


def made(page: str) -> str:
    """The page with the table of today."""
    if len(_TABLE.findall(page)) != 1:
        raise SystemExit("the page has no table of calls, or two")
    return _TABLE.sub(lambda _: table(), page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args(arguments)
    before = PAGE.read_text()
    after = made(before)
    if given.check:
        return int(before != after)
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
