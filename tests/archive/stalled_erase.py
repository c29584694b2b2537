"""An erasure that stops at a chosen place, to be killed there by the test.

``python -m tests.archive.stalled_erase PLACE URL TARGET`` says "reached" there and waits.
"""

from __future__ import annotations

import sys

from ops.archive import erasing
from ops.erase import erase
from penstock.archive.targets import Target
from tests.archive.stalled_rollup import stall
from tests.kit.erasing import BY_KEY, WHY

#: The step before which it stops.
PLACES = {
    "before the check": "require_whole",
    "before the commit": "replace_files",
    "after the commit": "_record",
    "before the removal": "_remove_old",
}


def main() -> None:
    """Run the erasure up to the place."""
    place, url, target = sys.argv[1:]
    setattr(erasing, PLACES[place], stall)
    erase(url, BY_KEY, WHY, [Target("local", target)])


if __name__ == "__main__":
    main()
