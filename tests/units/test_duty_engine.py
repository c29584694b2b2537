"""Which engine duties choose: a decision of numbers alone."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from ops.duties.engine import AUTO, EVENTS_FOR_SPARK, SPARK, SQL, UNITS_FOR_SPARK, choose
from ops.duties.verbs import EVENTS_PER_RELAY, consumers_for
from penstock.errors import ConfigurationError

MANY, MUCH = UNITS_FOR_SPARK, EVENTS_FOR_SPARK


@pytest.mark.parametrize(
    ("units", "events", "expected"),
    [
        (0, 0, SQL),
        (1, 0, SQL),
        (MANY - 1, MUCH - 1, SQL),
        (MANY, 0, SPARK),
        (2, MUCH, SPARK),
        (1, 100 * MUCH, SQL),  # one unit is one task, wherever it runs
    ],
)
def test_auto_chooses_spark_only_for_much(units: int, events: int, expected: str) -> None:
    assert choose(AUTO, units, events) == expected


@pytest.mark.parametrize("engine", [SQL, SPARK])
def test_who_names_an_engine_gets_it(engine: str) -> None:
    assert choose(engine, 0) == choose(engine, MANY, MUCH) == engine


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no engine 'flink'"):
        choose("flink", 1)


@pytest.mark.parametrize(
    ("events", "partitions", "consumers"),
    [(0, 0, 1), (1, 8, 1), (EVENTS_PER_RELAY + 1, 8, 2), (100 * EVENTS_PER_RELAY, 8, 8)],
)
def test_a_backlog_gets_consumers(events: int, partitions: int, consumers: int) -> None:
    assert consumers_for(events, partitions) == consumers


PROGRAM = textwrap.dedent(
    """
    import sys, psutil
    from ops.duties.setup import Setup
    from ops.duties.units import DutyUnit
    from ops.duties.running import run
    from penstock.spark.options import DatabaseAddress

    setup = Setup({str(n): DatabaseAddress("postgresql://nobody@127.0.0.1:1/x") for n in range(3)})
    for each in run([DutyUnit("sweep", name) for name in setup.databases], setup):
        assert each.state == "failed", each
    print("pyspark" in sys.modules, len(psutil.Process().children(recursive=True)))
    """
)


def test_a_small_run_starts_no_jvm() -> None:
    """Neither a process, nor even the package of Spark."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=dict(os.environ),
    )
    assert done.stdout.split() == ["False", "0"]
