"""The Python of Spark's workers: whether it can import Penstock."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS = 30.0


def require_workers(spark: SparkSession) -> None:
    """ConfigurationError when the workers of a session on this machine have no Penstock.

    Spark starts its workers with the first ``python3`` on the PATH, unless PYSPARK_PYTHON said
    something else when the session was made.  Outside of an activated environment that is another
    Python.  On a cluster, and where the session sends modules along, only a task can tell.
    """
    from pyspark.sql.utils import is_remote

    if is_remote():
        return
    context = spark.sparkContext
    sent = getattr(context, "_python_includes", ())
    is_here = str(context.master).partition("[")[0] == "local"
    if not is_here or sent or _has_penstock(context.pythonExec):
        return
    raise ConfigurationError(
        f"Spark's workers run {context.pythonExec!r}, which cannot import penstock",
        hint="name the Python of this program before the session is made: "
        f"os.environ['PYSPARK_PYTHON'] = sys.executable, here {sys.executable}",
    )


@lru_cache(maxsize=16)
def _has_penstock(python: str) -> bool:
    if python == sys.executable:
        return True
    try:
        asked = subprocess.run(
            [python, "-c", "import penstock"],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
