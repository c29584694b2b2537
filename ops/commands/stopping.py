"""The end of a relay that a person or an orchestrator asks for."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager

from penstock.cli.exit_codes import EXIT_NO
from penstock.leases.signals import stopped_by_signals

_AT_ONCE = b"ended at once: what was under way is sent again by the next run\n"


def until_signals() -> AbstractContextManager[threading.Event]:
    """Set by the first Ctrl-C or SIGTERM.  A second one does not wait for the sinks."""
    return stopped_by_signals(None, _end_at_once)


def _end_at_once() -> None:
    os.write(2, _AT_ONCE)  # a print may be interrupted by the signal
    os._exit(EXIT_NO)
