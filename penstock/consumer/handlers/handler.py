"""How a handler is called: its kind, and the middleware around it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

from penstock.consumer.handlers import tracing
from penstock.consumer.handlers.options import ConsumerOptions, Handler, Middleware
from penstock.errors import InvalidArgument
from penstock.topics import validation

#: What calls a function only when somebody iterates over it. Other iterators, such as a cursor of
#: the database, have done their work.
_LAZY = (map, filter)
_ITERATED = (Generator, AsyncGenerator, *_LAZY)
#: What a function returns that has only begun, or failed without an error that anybody saw.
_TO_BE_RUN = (Awaitable, concurrent.futures.Future, *_ITERATED)
_SEVERAL = frozenset({list, tuple, set})


@dataclass(frozen=True, slots=True)
class Handling:
    """A handler with its middleware; ``call`` takes an event, or a batch."""

    call: Handler
    by_batch: bool
    is_async: bool


def handling(subscription: str, options: ConsumerOptions) -> Handling:
    """The handler of a consumer, or InvalidArgument that says what is wrong with it."""
    by_batch = options.batch_handler is not None
    if by_batch == (options.handler is not None):
        raise InvalidArgument("a consumer has exactly one of handler and batch_handler")
    given = options.batch_handler if by_batch else options.handler
    return wrapped(subscription, given, options.middleware, by_batch=by_batch)


def wrapped(
    subscription: str,
    given: Handler | None,
    middleware: Iterable[Middleware],
    *,
    by_batch: bool = False,
) -> Handling:
    """A handler in its middleware."""
    is_async = is_coroutine_function(given, "the handler")
    around = list(middleware)
    traced = tracing.around_handlers(subscription, is_async=is_async)
    if traced is not None:
        around.insert(0, traced)
    assert given is not None
    call = _checked("the handler", given, is_async=is_async)
    for each in reversed(around):
        if is_coroutine_function(each, "a middleware") != is_async:
            kind = "async def" if is_async else "def"
            raise InvalidArgument(
                "of middleware and handler, only one is async",
                hint=f"write the middleware as `{kind} middleware(event, call_next)`",
            )
        call = _checked("a middleware", each, call, is_async=is_async)
    return Handling(call, by_batch, is_async)


def _checked(what: str, given: Callable[..., Any], *call_next: Handler, is_async: bool) -> Handler:
    """A handler, or a middleware around the next call, whose answer is looked at."""

    def call(delivered: Any) -> Any:
        answer = given(delivered, *call_next)
        return None if answer is None else has_run(what, answer, is_async=is_async)

    async def call_async(delivered: Any) -> Any:
        return has_run(what, await given(delivered, *call_next), is_async=is_async)

    return call_async if is_async else call


def has_run(what: str, answer: Any, *, is_async: bool) -> Any:
    """The answer; InvalidArgument when it still has to be run, because then nothing is done yet.

    It is also looked for in a list, a tuple or a set, but not deeper.
    """
    kind = type(answer)  # what a proxy stands for is not touched
    if answer is None or not (kind in _SEVERAL or issubclass(kind, _TO_BE_RUN)):
        return answer
    found = _unfinished(answer) if kind in _SEVERAL else [answer]
    if not found:
        return answer
    for each in found:
        if inspect.iscoroutine(each) and inspect.getcoroutinestate(each) == inspect.CORO_CREATED:
            each.close()  # else Python warns that nobody awaited it
    inside = f"{kind.__name__} with a " if kind in _SEVERAL else ""
    raise _not_run(f"{what} returned a {inside}", type(found[0]), is_async=is_async)


def _unfinished(answers: Iterable[Any]) -> list[Any]:
    """Those that still have to be run.  A handler may return the tasks that it has waited for."""
    kinds = {kind for kind in set(map(type, answers)) if issubclass(kind, _TO_BE_RUN)}
    if not kinds:  # no answer is looked at one by one
        return []
    return [each for each in answers if type(each) in kinds and not _is_finished(each)]


def _is_finished(answer: Any) -> bool:
    """Whether it has run to its end without an error."""
    if inspect.iscoroutine(answer):
        return inspect.getcoroutinestate(answer) == inspect.CORO_CLOSED
    if inspect.isgenerator(answer):
        return inspect.getgeneratorstate(answer) == inspect.GEN_CLOSED
    if isinstance(answer, (asyncio.Future, concurrent.futures.Future)):
        return answer.done() and not answer.cancelled() and answer.exception() is None
    return False


def _not_run(returned: str, kind: type, *, is_async: bool) -> InvalidArgument:
    if issubclass(kind, _ITERATED):
        lazy = kind.__name__ if kind in _LAZY else "generator"
        return InvalidArgument(
            f"{returned}{lazy}, which nobody iterates",
            hint="loop over it in the function, or write the function without yield",
        )
    if not issubclass(kind, Awaitable):
        return InvalidArgument(
            f"{returned}future, for which nobody waits",
            hint="call its result() in the function",
        )
    return InvalidArgument(
        f"{returned}{kind.__name__}, which nobody awaits",
        hint="await it in the function, such as `return await call_next(event)`"
        if is_async
        else "write the function as `async def` and await it, or call asyncio.run in it",
    )


def is_coroutine_function(given: object, what: str) -> bool:
    """Whether it is ``async def``.  Refuses what a consumer cannot call."""
    validation.function(what, given, "give a function, def or async def")
    call: Any = given
    while isinstance(call, functools.partial):
        call = call.func
    if not inspect.isroutine(call) and not isinstance(call, type):
        call = type(call).__call__
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise InvalidArgument(
            f"{what} is a generator, which the consumer does not run",
            hint="give a function without yield",
        )
    return inspect.iscoroutinefunction(call)
