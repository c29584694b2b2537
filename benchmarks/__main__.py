"""Measure Penstock on an embedded server of its own.

python -m benchmarks [--only GROUP] [--rows N] [--rounds N] [--hold-seconds N] [--retained-events N]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import consume, fetch, held, publish, report, retained, sequence, single
from benchmarks.bench_database import BenchDatabase, bench_database, bench_server
from benchmarks.measure import Case, Figure, Gap, Settings, measure
from benchmarks.peers import peers
from penstock.errors import PenstockError

Cases = Callable[[BenchDatabase, Settings], Iterator[Case | Figure | Gap]]

#: In the order of a run: what takes longest comes last.
GROUPS: dict[str, Cases] = {
    "publish": publish.cases,
    "single": single.cases,
    "sequence": sequence.cases,
    "fetch": fetch.cases,
    "consume": consume.cases,
    "peers": peers.cases,
    "held": held.cases,
    "retained": retained.cases,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _options(arguments)
    console = Console(width=None if sys.stdout.isatty() else 150)
    settings = Settings(options.rows, options.rounds, options.hold_seconds, options.retained_events)
    try:
        figures = run(console, options.only or list(GROUPS), settings)
    except PenstockError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    report.show(console, figures, settings.rounds)
    report.write(figures, options.output)
    return 0


def run(console: Console, chosen: Sequence[str], settings: Settings) -> list[Figure]:
    """Measure the chosen groups, each in a database of its own; tells what it is at."""
    figures = []
    with bench_server() as server:
        for group in chosen:
            with bench_database(server, f"bench_{group}") as bench:
                console.print(f"{group}: {bench.engine}, fsync on; {report.busy()}")
                for found in GROUPS[group](bench, settings):
                    if isinstance(found, Gap):
                        console.print(f"  {found.name}: not measured, {found.reason}")
                    elif isinstance(found, Figure):
                        figures.append(found)
                    else:
                        figures.append(measure(found, settings.rounds))
                        console.print(f"  {report.line(figures[-1])}")
    console.print(f"done; {report.busy()}")
    return figures


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    default = Settings()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", choices=list(GROUPS), action="append", help="a group to measure; may be repeated"
    )
    parser.add_argument("--rows", type=_positive, help="rows in each run, instead of the default")
    parser.add_argument("--rounds", type=_positive, default=default.rounds, help="pairs to measure")
    parser.add_argument(
        "--hold-seconds", type=_positive, default=default.hold_seconds,
        help="how long the snapshot is held",
    )  # fmt: skip
    parser.add_argument(
        "--retained-events", type=_positive, default=default.retained_events,
        help="how many events the long log holds",
    )  # fmt: skip
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
