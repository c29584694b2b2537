"""How often each key is used: counted here, and told to the database from time to time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from itertools import islice

from consumers.gateway.pool import Pool
from penstock.accounts import note_uses

logger = logging.getLogger("penstock.gateway")

NOTE_SECONDS = 10.0
#: Keys of one transaction, and of which uses are counted at a time.
MOST_NOTED = 500
MOST_COUNTED = 10_000


class Uses:
    """Counts uses of keys that were good."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._counted: Counter[str] = Counter()

    def count(self, key_id: str) -> None:
        """One more use."""
        if key_id in self._counted or len(self._counted) < MOST_COUNTED:
            self._counted[key_id] += 1

    async def run(self) -> None:
        """Tell the database again and again."""
        while True:
            await asyncio.sleep(NOTE_SECONDS)
            await self.note()

    async def note(self) -> None:
        """Tell what was counted until now.  What the database cannot take now comes later."""
        while self._counted:
            some = dict(islice(self._counted.items(), MOST_NOTED))
            try:
                await self._pool.run(None, partial(note_uses, uses=some))
            except Exception:
                logger.warning("the uses of keys could not be noted", exc_info=True)
                return
            for key_id, count in some.items():
                self._counted[key_id] -= count  # there may be more meanwhile
                if not self._counted[key_id]:
                    del self._counted[key_id]
