"""How long to wait before the next attempt to connect."""

from __future__ import annotations

import random

#: The longest pause between two attempts.
MAX_RECONNECT_SECONDS = 10.0


def backoff(failures: int) -> float:
    """Seconds until the next attempt after so many failures in a row, with jitter."""
    return random.uniform(0.1, min(MAX_RECONNECT_SECONDS, 0.5 * 2.0 ** min(failures, 10)))
