"""A process loads what it uses: what is heavy is not loaded before somebody asks for it."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Mapping

import pytest

from penstock.cli import main

#: Each takes tens or hundreds of milliseconds to load.
HEAVY = (
    "asyncio", "confluent_kafka", "dagster", "django", "http.client", "http.server", "numpy",
    "pandas", "psycopg", "pulsar", "pyarrow", "pymysql", "pyspark", "rich", "sqlalchemy", "typer",
)  # fmt: skip
_COMMAND = """
import contextlib, io
from penstock.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main.run({given}) == 0
"""


def command(*given: str) -> str:
    return _COMMAND.format(given=list(given))


#: What a process does, and what of the heavy modules it may load for that.
STARTS: Mapping[str, tuple[str, set[str]]] = {
    "import": ("import penstock, penstock.archive, penstock.http, ops, consumers", set()),
    "publish": ("import penstock; penstock.publish; penstock.publish_batch", set()),
    "consume": ("import penstock; penstock.Consumer; penstock.QueueConsumer", {"asyncio"}),
    "archive": ("from penstock.archive import read", {"numpy", "pyarrow"}),
    "spark": ("import penstock.spark.source", {"numpy", "pyarrow", "pyspark"}),
    "page": (command("--help"), set()),
    "version": (command("--version"), {"typer"}),
    "command": (command("publish", "--help"), {"typer", "rich"}),
    "a line": ("from penstock.cli import commands; commands.load('publish')", {"typer"}),
}


def loaded(program: str) -> set[str]:
    """Which heavy modules a process has after the program."""
    shown = f"import sys; print([each for each in {HEAVY} if each in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{shown}"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return set(done.stdout.strip("[]'\n").replace("'", "").split(", ")) - {""}


@pytest.mark.parametrize("start", STARTS)
def test_a_process_loads_nothing_heavy_that_it_does_not_need(start: str) -> None:
    program, needed = STARTS[start]
    assert loaded(program) <= needed


_COLLECTED = """
import atexit, gc
from penstock.cli import events, main

def began(*given):
    print(gc.isenabled(), end=" ")
    raise SystemExit(0)

events.payload_of = began
events = None
atexit.register(lambda: print(gc.isenabled(), len(gc.get_objects()) < gc.get_freeze_count()))
main.app(["publish", "shop/orders", "x"])
"""


def test_garbage_is_looked_for_by_a_command_and_not_in_what_was_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _COLLECTED], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["True", "True", "True"]


def test_a_program_that_runs_a_command_keeps_its_collector() -> None:
    """Nothing is frozen, and a collector that is off stays off."""
    before = gc.get_freeze_count()
    gc.disable()
    try:
        assert main.run(["publish", "--help"]) == 0
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert gc.get_freeze_count() <= before


def test_what_is_loaded_is_seen() -> None:
    assert loaded("import penstock.http.async_client") == {"asyncio"}
