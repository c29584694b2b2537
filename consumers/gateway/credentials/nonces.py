"""Nonces that were shown: a signed request counts once."""

from __future__ import annotations

from collections import Counter

#: Of one key, and of all keys: a process remembers no more.
MOST_EACH = 100_000
MOST = 1_000_000
_SPAN_SECONDS = 30.0


class TooManyNonces(Exception):
    """A key has shown so many that no more can be remembered."""


class Nonces:
    """Remembers each nonce until its request counts no longer."""

    def __init__(self, most_each: int = MOST_EACH, most: int = MOST) -> None:
        self._most_each = most_each
        self._most = most
        #: By the time when they may be forgotten.
        self._spans: dict[int, set[tuple[str, str]]] = {}
        self._each: Counter[str] = Counter()
        self._all = 0

    def take(self, key_id: str, nonce: str, until: float, now: float) -> bool:
        """Whether this is the first time that the nonce of a key is shown.

        ``until`` is when its request counts no longer.  Call it only after the signature was found
        to be good, or anybody could fill the table.  When it is full, TooManyNonces: none is
        forgotten before its time.
        """
        self._forget(now)
        shown = (key_id, nonce)
        if any(shown in span for span in self._spans.values()):
            return False
        if self._each[key_id] >= self._most_each or self._all >= self._most:
            raise TooManyNonces
        self._spans.setdefault(int(until // _SPAN_SECONDS), set()).add(shown)
        self._each[key_id] += 1
        self._all += 1
        return True

    def _forget(self, now: float) -> None:
        for span in [each for each in self._spans if (each + 1) * _SPAN_SECONDS < now]:
            over = self._spans.pop(span)
            self._all -= len(over)
            self._each -= Counter(key_id for key_id, _ in over)
