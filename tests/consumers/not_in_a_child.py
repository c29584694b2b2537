"""A handler that the daemon can load, but its child processes cannot."""

from __future__ import annotations

import sys

from tests.consumers.handlers import record as record

if "penstock.upkeep.child" in sys.orig_argv:
    raise RuntimeError("not here")
