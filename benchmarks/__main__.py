"""Measure Penstock on an embedded server of its own.

python -m benchmarks [--only publish|sequence|fetch|consume] [--rows N] [--rounds N]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import consume, fetch, publish, report, sequence
from benchmarks.bench_database import BenchDatabase, bench_database
from benchmarks.measure import Case, Figure, measure
from penstock.errors import PenstockError

GROUPS: dict[str, Callable[[BenchDatabase, int | None], list[Case]]] = {
    "publish": publish.cases,
    "sequence": sequence.cases,
    "fetch": fetch.cases,
    "consume": consume.cases,
}
ROUNDS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _options(arguments)
    console = Console(width=None if sys.stdout.isatty() else 100)
    chosen = [options.only] if options.only else list(GROUPS)
    try:
        figures = run(console, chosen, options.rows, options.rounds)
    except PenstockError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    report.show(console, figures, options.rounds)
    report.write(figures, options.output)
    return 0


def run(console: Console, chosen: Sequence[str], rows: int | None, rounds: int) -> list[Figure]:
    """Measure the chosen groups; tells on the console what it is at."""
    figures = []
    with bench_database() as bench:
        console.print(f"{bench.engine}, fsync and synchronous_commit on; {report.busy()}")
        for name in chosen:
            for case in GROUPS[name](bench, rows):
                console.print(f"  {case.name}: {rounds} pairs of {case.rows:,} rows")
                figures.append(measure(case, "postgres", rounds))
    return figures


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", choices=list(GROUPS), help="measure one thing")
    parser.add_argument("--rows", type=_positive, help="rows in each run, instead of the default")
    parser.add_argument("--rounds", type=_positive, default=ROUNDS, help="pairs to measure")
    parser.add_argument(
        "--output", type=Path, default=report.default_output(), help="where bench.json goes"
    )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
