"""A time limit for work on an archive target: a store that never answers must not stop the rest."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from ops.spark import cancel_jobs, tag_jobs
from penstock.errors import TargetUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")


class CopyTimeout(TargetUnavailable):
    """A target did not answer within the time limit of a copy."""


def within(
    seconds: float,
    what: str,
    work: Callable[[threading.Event], Result],
    spark: SparkSession | None = None,
) -> Result:
    """What the work returns; CopyTimeout when it is not done in time.

    It runs in a thread of its own, because nothing wakes a thread that waits for a disk or for a
    connection.  At the end of its time its Spark jobs are cancelled, and the event that it gets is
    set: then it starts nothing more.  The thread itself is left behind, to end when its call does.
    """
    tag = f"penstock-{uuid.uuid4()}"
    given_up = threading.Event()
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            if spark is not None:
                tag_jobs(spark, tag)
            outcome.set_result(work(given_up))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name=what, daemon=True).start()
    try:
        return outcome.result(timeout=seconds)
    except TimeoutError:
        if outcome.done():
            return outcome.result()
    given_up.set()
    if spark is not None:
        cancel_jobs(spark, tag)
    raise CopyTimeout(
        f"{what} was not done within {seconds:g} s",
        hint="look at the target's network and disks; or raise copy_timeout in the policy file",
    )
