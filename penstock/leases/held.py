"""The leases that a loop looks after: kept alive, given back when asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from penstock.database.wake import Wake
from penstock.leases.keeper import Keeper
from penstock.leases.loop import LoopSetting
from penstock.records import Lease

if TYPE_CHECKING:
    from penstock.database import Connection
    from penstock.leases.loop import Free


class HeldLeases(LoopSetting):
    """A keeper, as a loop uses it."""

    def __init__(self, keeper: Keeper) -> None:
        super().__init__(keeper.url, keeper.subscription, keeper.consumer)
        self._keeper = keeper

    def whole_run(self) -> AbstractContextManager[object]:
        """The keeper has a connection of its own."""
        return self._keeper

    @contextmanager
    def woken(self, wake: Wake) -> Iterator[None]:
        """In the block, a check-in that brings leases ends the loop's rest."""
        self._keeper.wake = wake.set
        try:
            yield
        finally:
            self._keeper.wake = lambda: None

    def longest_answer(self) -> float:
        """The lease, and a little more: the keeper stops at its end to keep it alive."""
        return self._keeper.longest_answer()

    def works_on(self, connection: Connection | None) -> None:
        """The keeper looks for how long it waits."""
        self._keeper.working = connection

    def reconnected(self, connection: Connection) -> None:
        """Whether the leases are still there."""
        self._keeper.look_again(connection)

    def heard(self, notices: Sequence[str]) -> None:
        """The database says that these partitions have grown."""
        self._keeper.heard(notices)

    def gauges(self) -> dict[str, float]:
        """What is held, and how long ago the database was last heard of."""
        return {
            "held_leases": float(len(self._keeper.leases())),
            "heartbeat_age_seconds": time.monotonic() - self._keeper.last_success,
        }

    def after_round(self, connection: Connection, free: Free) -> None:
        """Give back the leases that are asked back."""
        asked = [lease for lease in self._keeper.leases() if lease.state == "RELEASING"]
        if asked:
            self.release(connection, free(connection, asked))

    def release(self, connection: Connection, leases: list[Lease]) -> None:
        """Give leases back."""
        if leases:
            self._keeper.release(connection, leases)
        for lease in leases:
            self._keeper.lost(lease)
