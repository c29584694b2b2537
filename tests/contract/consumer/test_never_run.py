"""Handlers and middleware that return what still has to be run: nothing is done yet."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest

from penstock.consumer.handlers import handler as handlers
from penstock.consumer.handlers.failures import HandlerFailed
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.subscriptions import dead_letters, queue
from tests.contract.databases import ContractDatabase
from tests.contract.poison_kit import new_consumer
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, filled as filled_queue, rows
from tests.kit.stream import SUBSCRIPTION, filled, retry, running, stored

#: An answer is looked at before anything is said to the database.
pytestmark = pytest.mark.long_on("mysql", "mariadb")

KINDS = pytest.mark.parametrize("kind", ["queue", "stream"])


class Work:
    """What is returned in place of being run, and what of it ran nevertheless."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.coroutines: list[Any] = []

    async def _coroutine(self, event: Any) -> None:
        self.ran.append(event)

    def coroutine(self, event: Any) -> Awaitable[None]:
        self.coroutines.append(self._coroutine(event))
        return self.coroutines[-1]

    def generator(self, event: Any) -> Iterator[None]:
        self.ran.append(event)
        yield

    async def async_generator(self, event: Any) -> AsyncIterator[None]:
        self.ran.append(event)
        yield

    def future(self, _: Any) -> Future[None]:
        failed: Future[None] = Future()
        failed.set_exception(ValueError("the work of a pool failed"))
        return failed


class Later:
    """An object that can be awaited, as clients of HTTP return it."""

    def __await__(self) -> Iterator[None]:
        raise AssertionError("nobody awaits it")


def _task(_: Any) -> Awaitable[None]:
    return asyncio.get_running_loop().create_future()


def _by_turns(functions: Sequence[Callable[[Any], Any]], *, is_async: bool) -> Callable[[Any], Any]:
    """A handler that returns what the first function does at the first event, and so on."""

    def handle(event: Any) -> Any:
        return functions[event.sequence - 1](event)

    async def handle_async(event: Any) -> Any:
        return handle(event)

    return handle_async if is_async else handle


def _failures(
    db: ContractDatabase, kind: str, events: int, handler: Any, middleware: Any = ()
) -> list[str]:
    """What is kept of each event that failed at its first attempt."""
    own = db.connect()
    options = {"handler": handler, "middleware": middleware}
    if kind == "queue":
        filled_queue(own, events)
        with suppress(HandlerFailed):
            QueueConsumer(db.url, QUEUE, **options).run_until_idle()
        reasons = rows(own, "SELECT reason FROM penstock.queue_waiting ORDER BY sequence")
        assert queue.statistics(own, QUEUE).size == len(reasons)
        return [each for (each,) in reasons]
    filled(own, events=events)
    retry(own, max_attempts=1)
    with running(new_consumer(db, **options)):
        wait_until(lambda: stored(own) == events, "all are done or given up")
    letters = dead_letters.dead_letters(own, SUBSCRIPTION)
    return [each.reason for each in sorted(letters, key=lambda each: each.sequence)]


@proves("S16, what never ran")
@KINDS
def test_what_an_async_handler_returns_is_awaited_or_no_success(
    db: ContractDatabase, kind: str
) -> None:
    """It counted as done though nothing ran.  Guard: has_run."""
    work = Work()
    given = [
        work.coroutine, work.generator, work.async_generator, work.future, _task,
        lambda _: Later(), lambda event: [None, work.coroutine(event)],
        lambda event: map(work.ran.append, [event]),
    ]  # fmt: skip
    said = _failures(db, kind, len(given), _by_turns(given, is_async=True))
    wanted = [
        "the handler returned a coroutine, which nobody awaits",
        "the handler returned a generator, which nobody iterates",
        "the handler returned a generator, which nobody iterates",
        "the handler returned a future, for which nobody waits",
        "Future, which nobody awaits",
        "the handler returned a Later, which nobody awaits",
        "the handler returned a list with a coroutine, which nobody awaits",
        "the handler returned a map, which nobody iterates",
    ]
    assert len(said) == len(wanted), said
    for text, expected in zip(said, wanted, strict=True):
        assert "InvalidArgument" in text and expected in text
    assert "await it" in said[0] and "without yield" in said[1] and "result()" in said[3]
    assert not work.ran
    assert {inspect.getcoroutinestate(each) for each in work.coroutines} == {inspect.CORO_CLOSED}


@proves("S16, what never ran")
@KINDS
def test_so_it_is_with_a_plain_function(db: ContractDatabase, kind: str) -> None:
    """A lambda hides that what it calls is a generator.  Guard: has_run."""
    work = Work()
    given = [work.coroutine, work.generator, work.async_generator, work.future]
    said = _failures(db, kind, len(given), _by_turns(given, is_async=False))
    wanted = ["nobody awaits", "nobody iterates", "nobody iterates", "nobody waits"]
    assert len(said) == len(wanted), said
    assert all(expected in text for text, expected in zip(said, wanted, strict=True))
    assert "asyncio.run" in said[0] and not work.ran
    assert inspect.getcoroutinestate(work.coroutines[0]) == inspect.CORO_CLOSED


@proves("S16, what never ran")
@KINDS
@pytest.mark.parametrize("is_outermost", [True, False])
def test_a_middleware_that_forgets_to_await_is_no_success(
    db: ContractDatabase, kind: str, is_outermost: bool
) -> None:
    """Also when one around it drops the answer.  Guard: _checked around each of them."""
    work = Work()

    async def forgets(event: Any, call_next: Any) -> Any:
        return call_next(event)

    async def drops(event: Any, call_next: Any) -> None:
        await call_next(event)

    around = [forgets] if is_outermost else [drops, forgets]
    (said,) = _failures(db, kind, 1, work._coroutine, around)
    assert "a middleware returned a coroutine" in said and "return await call_next" in said
    assert not work.ran


@proves("S16, what never ran")
@KINDS
def test_a_middleware_with_a_yield_inside_is_no_success(db: ContractDatabase, kind: str) -> None:
    """The event never came to the handler.  Guard: _checked around each of them."""
    work, handled = Work(), list[Any]()
    (said,) = _failures(db, kind, 1, handled.append, [lambda event, _: work.generator(event)])
    assert "a middleware returned a generator" in said and not handled


@proves("S16, what never ran", guard="has_run")
@KINDS
@pytest.mark.parametrize("is_async", [True, False])
def test_without_the_look_nothing_ran_and_all_is_done(
    db: ContractDatabase, kind: str, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: no kind of answer still has to be run."""
    monkeypatch.setattr(handlers, "_TO_BE_RUN", ())
    work = Work()
    given = [work.generator, work.future]
    assert _failures(db, kind, len(given), _by_turns(given, is_async=is_async)) == []
    assert not work.ran
