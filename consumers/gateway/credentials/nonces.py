"""Nonces that were shown: a signed request counts once."""

from __future__ import annotations

import threading

#: A process remembers so many; a new one beyond that is refused until old ones are forgotten.
MOST = 200_000


class Nonces:
    """Remembers each nonce for a time, in two generations of that length."""

    def __init__(self, seconds: float, most: int = MOST) -> None:
        self._seconds = seconds
        self._most = most
        self._present: set[tuple[str, str]] = set()
        self._former: set[tuple[str, str]] = set()
        self._turned = float("-inf")
        self._lock = threading.Lock()

    def take(self, key_id: str, nonce: str, now: float) -> bool:
        """Whether this is the first time that the nonce of a key is shown.

        Call it only after the signature was found to be good, or anybody could fill the table.
        """
        shown = (key_id, nonce)
        with self._lock:
            if now - self._turned >= self._seconds:
                is_recent = now - self._turned < 2 * self._seconds
                self._former = self._present if is_recent else set()
                self._present, self._turned = set(), now
            if shown in self._present or shown in self._former:
                return False
            if len(self._present) + len(self._former) >= self._most:
                return False
            self._present.add(shown)
            return True
