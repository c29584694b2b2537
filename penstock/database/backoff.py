"""How long to wait before the next attempt: the pauses of everything that retries."""

from __future__ import annotations

import random

#: The longest pause between two attempts to connect.
MAX_RECONNECT_SECONDS = 10.0
#: For retries that go on until they succeed: the shortest pause, and the longest first pause.
_SHORTEST_SECONDS, _FIRST_SECONDS = 0.1, 1.0
#: A pause that has doubled this often is longer than any setting allows.
_MOST_DOUBLINGS = 40


def doubled(failures: int, first: float, longest: float) -> float:
    """The pause after so many failures in a row: the first one, doubled up to the longest."""
    return min(longest, first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))


def backoff(failures: int, longest: float = MAX_RECONNECT_SECONDS) -> float:
    """Seconds until the next attempt after so many failures in a row, with jitter."""
    return random.uniform(_SHORTEST_SECONDS, doubled(failures, _FIRST_SECONDS, longest))
