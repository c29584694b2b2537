"""How a handler is called: its kind, and the middleware around it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Any

from penstock.consumer import tracing
from penstock.consumer.options import ConsumerOptions, Handler, Middleware
from penstock.errors import InvalidArgument
from penstock.topics import validation


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
    call: Handler = given if is_async else _refusing_coroutines(given)
    for each in reversed(around):
        if is_coroutine_function(each, "a middleware") != is_async:
            kind = "async def" if is_async else "def"
            raise InvalidArgument(
                "of middleware and handler, only one is async",
                hint=f"write the middleware as `{kind} middleware(event, call_next)`",
            )
        call = functools.partial(_around, each, call)
    return Handling(call, by_batch, is_async)


def _around(each: Middleware, call_next: Handler, delivered: Any) -> Any:
    return each(delivered, call_next)


def _refusing_coroutines(handler: Handler) -> Handler:
    """Refuse a plain function that returns a coroutine: it has done nothing yet."""

    def call(delivered: Any) -> Any:
        answer = handler(delivered)
        if answer is not None and isinstance(answer, Awaitable):
            if inspect.iscoroutine(answer):
                answer.close()
            raise InvalidArgument(
                "the handler returned a coroutine, which nobody awaits",
                hint="write it as `async def`, or call asyncio.run in it",
            )
        return answer

    return call


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
