"""Spark sessions of commands, and where a command works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Annotated

import typer

from ops.duties.engine import ENGINES
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Engine = Annotated[
    str, typer.Option(help=f"{', '.join(ENGINES)}: Spark where there is much to do.")
]


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from ops.spark import local_session

    running = SparkSession.getActiveSession()
    session = local_session("penstock command")
    try:
        yield session
    except OSError as error:
        raise PenstockError(
            f"the archive target cannot be used: {error}",
            hint="name another directory, or give the right to write there",
        ) from error
    finally:
        if running is None:
            session.stop()


def once(stack: ExitStack) -> Callable[[], SparkSession]:
    """A session that is started by the first call, and stopped with the stack."""
    return cache(lambda: stack.enter_context(spark_session()))
