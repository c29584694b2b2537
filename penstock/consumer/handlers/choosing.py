"""Which executor a consumer has: tasks, the loop's own thread, or threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.consumer.handlers.executors import Executor, InlineExecutor, ThreadExecutor
from penstock.consumer.handlers.task_executor import TaskExecutor

if TYPE_CHECKING:
    from penstock.consumer.handlers.handler import Handling
    from penstock.leases.loop import Rounds


def executor_for(
    loop: Rounds,
    handled: Handling,
    count: int,
    *,
    handler_seconds: float | None,
    may_be_inline: bool,
    **options: Any,
) -> Executor[Any, Any]:
    """What runs up to ``count`` handlers at once for a loop.  The options are the executor's."""
    options["stopping"] = loop.is_stopping
    if handled.is_async:
        return TaskExecutor(
            handled,
            count,
            url=loop.url,
            application_name=loop.application_name,
            handler_seconds=handler_seconds,
            **options,
        )
    if may_be_inline and count == 1 and handler_seconds is None:
        return InlineExecutor(handled, 1, **options)
    return ThreadExecutor(
        handled,
        count,
        connect=loop.open_for_handlers,
        handler_seconds=handler_seconds,
        **options,
    )
