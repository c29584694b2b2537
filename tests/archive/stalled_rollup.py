"""A rollup that stops at a chosen place, to be killed there by the test.

``python -m tests.archive.stalled_rollup PLACE URL TOPIC TARGET`` says "reached" there and waits.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, NoReturn

from ops.archive import rollup
from penstock.archive.targets import Target

#: The step before which it stops.
PLACES = {
    "before the check": "require_whole",
    "before the commit": "replace_files",
    "after the commit": "move",
}


def stall(*_: Any, **__: Any) -> NoReturn:
    """Say that the place is reached, and stay there."""
    sys.stdout.write("reached\n")
    sys.stdout.flush()
    threading.Event().wait()
    raise AssertionError("unreachable")


def main() -> None:
    """Run the rollup up to the place."""
    place, url, topic, target = sys.argv[1:]
    setattr(rollup, PLACES[place], stall)
    rollup.rollup(url, topic, Target("local", target))


if __name__ == "__main__":
    main()
