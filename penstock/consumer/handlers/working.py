"""A handler's transaction that finishes events too: of a batch, or of a queue's delivery."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock import database
from penstock.consumer.handlers.failures import HandlerRolledBack
from penstock.database import sessions, steps
from penstock.database.async_connections import is_rolled_back, run_on, unended

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.database import Connection
    from penstock.database.steps import Steps

#: Where a transaction is: before the handler's block, in it, or after it.
_BEFORE, _WITHIN, _BEHIND = range(3)


@dataclass(slots=True)
class _At:
    step: int = _BEFORE


class Connections(Protocol):
    """Gives a handler its connection; the executor that runs the handler is one."""

    @property
    def connection(self) -> Connection:
        """The connection on which the caller's thread may work."""

    def async_connection(self) -> AbstractAsyncContextManager[Any]:
        """The same for a coroutine."""


class Working(ABC):
    """What runs a transaction in which events are finished first."""

    def __init__(self, connections: Connections) -> None:
        #: Whether the last transaction failed, and not because of the handler: that was no attempt.
        self.disturbed = False
        self._connections = connections
        self._began = 0.0
        self._used: Any = None

    @abstractmethod
    def finish_steps(self, position: int) -> Steps[None]:
        """The calls that finish the events up to a position."""

    @property
    @abstractmethod
    def limit_seconds(self) -> float:
        """How long a transaction may take."""

    @abstractmethod
    def mark(self) -> int:
        """Where the handler is."""

    @abstractmethod
    def back_to(self, mark: int) -> None:
        """A transaction has committed nothing."""

    @contextmanager
    def work_on(self, position: int) -> Iterator[Connection]:
        """The transaction of :meth:`transaction`, committing up to a position."""
        with self._trying() as at:
            connection = self._used = self._connections.connection
            kind = sessions.of_connection(connection)
            with kind.transaction(connection):
                steps.run(connection, self.finish_steps(position))
                at.step = _WITHIN
                with kind.unended(connection):
                    yield connection
                at.step = _BEHIND
                if kind.is_broken(connection):
                    raise _swallowed()

    @asynccontextmanager
    async def work_on_async(self, position: int) -> AsyncIterator[Any]:
        """The same on the consumer's asynchronous connection."""
        with self._trying() as at:
            async with (
                self._connections.async_connection() as connection,
                connection.transaction(),
            ):
                await run_on(connection, self.finish_steps(position))
                at.step = _WITHIN
                with unended(connection):
                    yield connection
                at.step = _BEHIND
                if await is_rolled_back(connection):
                    raise _swallowed()

    @contextmanager
    def _trying(self) -> Iterator[_At]:
        """Record that a block which ends in an error has committed nothing, and what caused it."""
        before, self._began = self.mark(), time.monotonic()
        self.disturbed, at = False, _At()
        try:
            yield at
        except BaseException as error:
            self.back_to(before)
            self.disturbed = _is_disturbed(at.step, error)
            raise

    @property
    def cut_off(self) -> bool:
        """Whether the consumer's own connection is lost, and not one of the handler's."""
        return self._used is not None and sessions.of_connection(self._used).is_closed(self._used)

    def outlived_lease(self, error: BaseException) -> bool:
        """Whether it is lost because the transaction took too long."""
        seconds = time.monotonic() - self._began if self._began else 0.0
        kind = sessions.of_connection(self._used)
        return kind.outlived_lease(error, seconds, self.limit_seconds)


class Transaction:
    """``with`` it, or ``async with`` it in an async handler."""

    def __init__(self, working: Working, position: int) -> None:
        self._working = working
        self._position = position
        self._sync: AbstractContextManager[Connection] | None = None
        self._async: AbstractAsyncContextManager[Any] | None = None

    def __enter__(self) -> Connection:
        self._sync = self._working.work_on(self._position)
        return self._sync.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._sync is not None
        return self._sync.__exit__(kind, error, trace)

    async def __aenter__(self) -> Any:
        self._async = self._working.work_on_async(self._position)
        return await self._async.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._async is not None
        return await self._async.__aexit__(kind, error, trace)


def _is_disturbed(step: int, error: BaseException) -> bool:
    """Whether a step of Penstock failed, and not one of the handler's.

    A COMMIT that takes too long counts as the handler's step: it does what the handler left to
    it, a deferred constraint for example.
    """
    if step == _WITHIN or not database.is_passing(error):
        return False
    return step == _BEFORE or not database.is_cancelled(error)


def _swallowed() -> HandlerRolledBack:
    return HandlerRolledBack(
        "the transaction was lost before its block ended: a statement in it failed and was passed "
        "over, or SQL text ended it",
        hint="after such an error roll back, or let it through; the end of the block commits",
    )
