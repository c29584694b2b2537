"""How many requests of each account there are now: a quota that a process of the gateway counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from consumers.gateway.access import AccountCaller
from consumers.gateway.answers import Refused

#: A poll of SQS for which there is no room finds nothing after so long.
HELD_SECONDS = 1.0


class TooManyRequests(Refused):
    """An account has as many requests as it may have."""

    def __init__(self, most: int) -> None:
        super().__init__(
            429,
            f"this account has {most} requests, polls and streams here now, which is its quota",
            {"Retry-After": "1"},
        )


class Present:
    """Counts them; ``usual`` is for accounts without a quota of their own."""

    def __init__(self, usual: int) -> None:
        self._usual = usual
        self._now: Counter[str] = Counter()
        self._held: Counter[str] = Counter()

    @contextmanager
    def one(self, caller: AccountCaller) -> Iterator[None]:
        """One more, until it is answered.  TooManyRequests when there are so many already."""
        with self._counted(self._now, caller):
            yield

    async def hold(
        self, caller: AccountCaller, unless_gone: Callable[[Awaitable[None]], Awaitable[None]]
    ) -> None:
        """Hold a poll for which there is no room, so that its caller does not come at once again.

        No more are held than may be present: the others are answered now.
        """
        try:
            with self._counted(self._held, caller):
                await unless_gone(asyncio.sleep(HELD_SECONDS))
        except TooManyRequests:
            return

    @contextmanager
    def _counted(self, counter: Counter[str], caller: AccountCaller) -> Iterator[None]:
        account = caller.principal.account_id
        most = self._usual if caller.max_requests is None else caller.max_requests
        if counter[account] >= most:
            raise TooManyRequests(most)
        counter[account] += 1
        try:
            yield
        finally:
            counter[account] -= 1
            if not counter[account]:
                del counter[account]
