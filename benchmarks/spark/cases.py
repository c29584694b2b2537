"""The cases of Spark, in one session."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.measure import Case, Figure, Gap, Settings
from benchmarks.spark import archive, live, stream_latency
from benchmarks.spark.session import session
from penstock.spark import register
from tools import java


def cases(bench: Bench, settings: Settings) -> Iterator[Case | Figure | Gap]:
    """A session is started once; the pair that warms up pays for its first use."""
    try:
        home = java.home()
    except java.JavaMissing as error:
        yield Gap("spark", str(error))
        return
    with session(home) as (spark, has_jdbc), tempfile.TemporaryDirectory() as folder:
        register(spark)
        yield from live.cases(spark, bench, settings, Path(folder), has_jdbc)
        yield from stream_latency.figures(spark, bench, settings, Path(folder))
        yield from archive.cases(spark, bench, settings, Path(folder))
