"""``make dev``: becomes ``dagster dev``, with the signals that stop it as they are by default.

A shell without a terminal starts what it puts in the background with SIGINT ignored; Dagster takes
that over, and then SIGTERM does nothing either.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Replace this process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-m", "dagster", "dev", *sys.argv[1:]])


if __name__ == "__main__":
    main()
