"""How an event loop that has a thread of its own ends: nothing is left under way in it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


def start(loop: asyncio.AbstractEventLoop, name: str) -> threading.Thread:
    """Run an event loop in a new thread until the loop is stopped.  The thread closes it."""
    thread = threading.Thread(target=_run, args=(loop,), name=name, daemon=True)
    thread.start()
    return thread


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def end_tasks(seconds: float) -> None:
    """Cancel every other task of this event loop, and wait until all have ended.

    While a task ends it may begin another one, so this looks again.  A task that refuses to end is
    waited for that long.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        if loop.time() >= until:
            return
        for each in others:
            each.cancel()
        await asyncio.wait(others, timeout=until - loop.time())
    with suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            await loop.shutdown_asyncgens()
