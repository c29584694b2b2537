"""``python -m tests.consumers.soon consumers|penstock ...``: a program whose start is over soon.

A worker that fails within the first seconds ends its program.  A test of what comes after that
would wait for them.
"""

from __future__ import annotations

import sys
from importlib import import_module

from penstock.consumer.running import supervisor

STARTED_AFTER_SECONDS = 0.5


def main() -> None:
    """Run the one that is named, with the arguments behind its name."""
    supervisor.STARTED_AFTER_SECONDS = STARTED_AFTER_SECONDS
    name = sys.argv.pop(1)
    if name == "consumers":
        import_module("consumers.__main__").main()
    else:
        import_module("penstock.cli.main").app()


if __name__ == "__main__":
    main()
