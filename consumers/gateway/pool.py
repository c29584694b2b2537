"""Connections to the database, each with a thread of its own; accounts take turns at them."""

from __future__ import annotations

import asyncio
import functools
import select
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic as now
from typing import Any, TypeVar

from consumers.gateway.answers import Refused
from consumers.gateway.turns import OWN, Turn, Turns
from penstock import database
from penstock.accounts import Acting, acting

T = TypeVar("T")

#: A call that takes longer is ended by the database.
CALL_TIMEOUT_MS = 15_000
#: What there is to read on an idle connection: its end, or why the server ends it.
_HUNG_UP = select.POLLIN | select.POLLHUP | select.POLLERR


@dataclass(frozen=True, slots=True)
class Principal:
    """For whom a transaction acts: an account, by a key that was shown."""

    account_id: str
    key_id: str


class Pool:
    """Runs calls on connections, of accounts in turn.  Beyond ``most`` that wait, it refuses more.

    With ``lock_timeout_ms``, a call waits no longer than that for another transaction.
    """

    def __init__(
        self,
        url: str,
        connections: int,
        most: int,
        name: str = "calls",
        lock_timeout_ms: int | None = None,
    ) -> None:
        self._url = url
        self._most = most
        self._name = name
        self._lock_timeout_ms = lock_timeout_ms
        self._turns = Turns(connections)
        self._lines: dict[str, deque[asyncio.Future[Turn]]] = {}
        self._own = threading.local()
        self._opened: set[Any] = set()
        self._executor = ThreadPoolExecutor(connections, thread_name_prefix=f"gateway-{name}")

    async def run(
        self,
        principal: Principal | None,
        work: Callable[[Any], T],
        *,
        once: bool = False,
        accounts: int = 1,
    ) -> T:
        """What ``work`` returns for a connection, in a transaction that acts for the principal.

        Without one, it gets the connection as it is, and is run again if that turns out to be lost.
        With ``once`` it is not: what it did is not known then.  If it is for several ``accounts``,
        its turn costs the share of one of them.
        """
        account = principal.account_id if principal is not None else OWN
        call = functools.partial(self._on_own, principal, work, once=once)
        return await self._in_turn(account, call, accounts)

    async def call(self, principal: Principal, work: Callable[[Any, Acting], T]) -> T:
        """What ``work`` returns; it makes one call, which is a transaction that acts for them."""
        by = Acting(principal.account_id, [principal.key_id])
        call = functools.partial(
            self._on_own, None, lambda connection: work(connection, by), once=True
        )
        return await self._in_turn(principal.account_id, call)

    async def _in_turn(self, account: str, call: Callable[[], T], accounts: int = 1) -> T:
        loop = asyncio.get_running_loop()
        turn = await self._turn(account)
        begun = now()
        running = loop.run_in_executor(self._executor, call)

        def ended(_: object) -> None:
            self._turns.charge(turn, (now() - begun) / accounts)
            self._end(turn)
            if not running.cancelled():
                running.exception()  # its caller may have gone, and nobody else looks

        running.add_done_callback(ended)
        # A caller that goes away ends no call, so its connection is not free before the call ends.
        return await asyncio.shield(running)

    async def _turn(self, account: str) -> Turn:
        if not self._turns.has_room(account, self._most):
            raise Refused(429, "too many calls wait for the database", {"Retry-After": "1"})
        come: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(account, deque())
        line.append(come)
        self._turns.wait(account)
        self._go_on()
        try:
            return await come
        except asyncio.CancelledError:
            if not come.cancelled():
                self._end(come.result())
            elif come in line:
                line.remove(come)
                self._turns.leave(account)
            raise
        finally:
            if not line and self._lines.get(account) is line:
                del self._lines[account]

    def _go_on(self) -> None:
        while (turn := self._turns.begin()) is not None:
            come = self._lines[turn.account].popleft()
            if come.cancelled():
                self._turns.end(turn)
            else:
                come.set_result(turn)

    def _end(self, turn: Turn) -> None:
        self._turns.end(turn)
        self._go_on()

    def close(self) -> None:
        """Wait for calls that run, and close the connections."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        for connection in self._opened:
            with suppress(Exception):  # it may be lost already
                connection.close()

    def _on_own(
        self, principal: Principal | None, work: Callable[[Any], T], *, once: bool = False
    ) -> T:
        for is_last in (False, True):
            is_begun = once
            connection = self._connection()
            try:
                if principal is None:
                    return work(connection)
                with acting(connection, principal.account_id, [principal.key_id]):
                    is_begun = True
                    return work(connection)
            except Exception as error:
                # A connection that an earlier restart has cut is noticed here, before the work.
                if not self._is_lost(connection, error) or is_begun or is_last:
                    raise
        raise AssertionError("the second turn has returned or raised")

    def _is_lost(self, connection: Any, error: Exception) -> bool:
        is_lost = database.is_unavailable(error)
        if is_lost or not _is_usable(connection):
            self._drop(connection)
        return is_lost

    def _drop(self, connection: Any) -> None:
        self._own.connection = None
        self._opened.discard(connection)
        with suppress(Exception):  # it is lost
            connection.close()

    def _connection(self) -> Any:
        connection = getattr(self._own, "connection", None)
        if connection is not None and _is_hung_up(connection):
            self._drop(connection)
            connection = None
        if connection is None:
            connection = database.connect(
                self._url,
                application_name=f"penstock gateway {self._name}",
                statement_timeout_ms=CALL_TIMEOUT_MS,
            )
            if self._lock_timeout_ms is not None:
                _limit_waits(connection, self._lock_timeout_ms)
            self._own.connection = connection
            self._opened.add(connection)
        return connection


def _is_usable(connection: Any) -> bool:
    """False for one that `acting` has closed after an error."""
    return not getattr(connection, "closed", False) and getattr(connection, "open", True)


def _is_hung_up(connection: Any) -> bool:
    """Whether the server has closed a connection that was idle: it asks only this machine."""
    looks = select.poll()
    looks.register(getattr(connection, "_sock", connection), _HUNG_UP)  # PyMySQL's, or psycopg's
    return bool(looks.poll(0))


def _limit_waits(connection: Any, milliseconds: int) -> None:
    # MySQL counts in seconds, and a second is the least.
    limit = {
        "postgres": f"SET lock_timeout = {milliseconds}",
        "mysql": f"SET SESSION innodb_lock_wait_timeout = {-(-milliseconds // 1_000)}",
    }
    database.execute(connection, limit[database.dialect_of(connection)])
