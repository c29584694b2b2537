"""Measure Penstock on servers of its own.

python -m benchmarks [--only GROUP] [--engine ENGINE] [--rows N] [--rounds N] [--hold-seconds N]
    [--held-events N] [--held-batch N] [--retained-events N] [--load-seconds N]
    [--unvacuumed-seconds N] [--waiting N] [--short]

--short measures on PostgreSQL what has an aim, in three pairs, and takes about ten minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import (
    accounts,
    bulk,
    consume,
    control_plane,
    fetch,
    gateway,
    held,
    history,
    idle,
    latency,
    load,
    machine,
    publish,
    queue,
    relay,
    report,
    retained,
    scale,
    sequence,
    single,
    start,
    versions,
)
from benchmarks.engines import ENGINES, OLDER, Opens
from benchmarks.measure import Case, Figure, Gap, Settings, measure
from benchmarks.peers import peers
from benchmarks.spark import cases as spark
from penstock.errors import PenstockError
from tools.servers import ServerUnavailable


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that share a database, and the engines that they can be measured on."""

    cases: Callable[[Any, Settings], Iterator[Case | Figure | Gap]]
    engines: Sequence[str] = tuple(ENGINES)


#: In the order of a run: the longest come last.
GROUPS = {
    "publish": Group(publish.cases),
    "bulk": Group(bulk.cases, ["postgres"]),
    "single": Group(single.cases, ["postgres"]),
    "accounts": Group(accounts.cases, ["postgres"]),
    "start": Group(start.cases, ["postgres"]),
    "sequence": Group(sequence.cases),
    "fetch": Group(fetch.cases),
    "consume": Group(consume.cases),
    "idle": Group(idle.cases),
    "latency": Group(latency.cases),
    "peers": Group(peers.cases, ["postgres"]),
    "spark": Group(spark.cases, ["postgres"]),
    "load": Group(load.cases),
    "control_plane": Group(control_plane.cases, ["postgres"]),
    "queue": Group(queue.cases),
    "scale": Group(scale.cases, ["postgres"]),
    "relay": Group(relay.cases, ["postgres"]),
    "gateway": Group(gateway.cases),
    "held": Group(held.cases),
    "unvacuumed": Group(held.unvacuumed_cases, ["postgres"]),
    "retained": Group(retained.cases, ["postgres"]),
    "versions": Group(versions.cases, ["postgres"]),
}
#: The groups of a short run.
SHORT = ("publish", "single", "accounts", "start", "consume", "latency", "peers", "queue")
SHORT_ROUNDS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _options(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    settings = _settings(options)
    groups, engines = (SHORT, ["postgres"]) if options.short else (GROUPS, ENGINES)
    past_runs = options.output.with_name("bench-history.jsonl")
    try:
        past = history.read(past_runs)  # before an hour is spent on what cannot be compared
        score = machine.score()
        figures = run(
            console, options.only or list(groups), options.engine or list(engines), settings
        )
    except PenstockError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not figures:
        print("error: nothing was measured", file=sys.stderr)
        return 1
    report.show(console, figures, settings.rounds)
    report.write(figures, options.output)
    if settings.rows is None:
        scale.draw(figures)
    done = history.run_of(figures, settings, score.or_slower(machine.score()))
    history.append(past_runs, done)
    console.print(f"this machine: {done.score}")
    report.compare(console, list(history.compared(past, done)))
    return 0


def run(
    console: Console, groups: Sequence[str], engines: Sequence[str], settings: Settings
) -> list[Figure]:
    """Measure the groups on each of their engines.  An engine that is missing is named."""
    figures: list[Figure] = []
    for engine in engines:
        chosen = [group for group in groups if engine in measured_on(group)]
        if not chosen:
            continue
        try:
            with (ENGINES | OLDER)[engine]() as opens:
                for group in chosen:
                    found = _measured(console, group, opens, settings)
                    figures.extend(replace(each, engine=engine) for each in found)
        except ServerUnavailable as error:
            console.print(f"{engine}: not measured, {error}")
    console.print(f"done; {report.busy()}")
    return figures


def measured_on(group: str) -> set[str]:
    """The engines of a group.  What runs on every engine runs on older versions too."""
    engines = set(GROUPS[group].engines)
    return engines | OLDER.keys() if engines == ENGINES.keys() else engines


def _measured(console: Console, group: str, opens: Opens, settings: Settings) -> Iterator[Figure]:
    """Measure one group in its own database.  Prints the progress."""
    with opens(f"bench_{group}") as bench:
        console.print(f"{group}: {bench.title}, durable; {report.busy()}")
        for found in GROUPS[group].cases(bench, settings):
            if isinstance(found, Gap):
                console.print(f"  {found.name}: not measured, {found.reason}")
            elif isinstance(found, Figure):
                yield found
            else:
                measured = measure(found, settings.rounds)
                console.print(f"  {report.line(measured)}")
                yield measured


def _settings(options: argparse.Namespace) -> Settings:
    rounds = SHORT_ROUNDS if options.short else Settings().rounds
    return Settings(
        options.rows, options.rounds or rounds, options.hold_seconds, options.held_events,
        options.held_batch, options.retained_events, options.load_seconds,
        options.unvacuumed_seconds, options.waiting, options.short,
    )  # fmt: skip


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    default = Settings()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", choices=list(GROUPS), action="append", help="a group to measure; may be repeated"
    )
    parser.add_argument(
        "--engine", choices=[*ENGINES, *OLDER], action="append",
        help="an engine to measure on; may be repeated",
    )  # fmt: skip
    parser.add_argument("--rows", type=_positive, help="rows in each run, instead of the default")
    parser.add_argument("--rounds", type=_positive, help="pairs to measure, instead of 5")
    parser.add_argument(
        "--short", action="store_true", help="only what has an aim, on PostgreSQL, in three pairs"
    )
    parser.add_argument(
        "--held-events", type=int, default=default.held_events,
        help="how many events come under the held snapshot before its time begins",
    )  # fmt: skip
    for name, help_text in (
        ("hold_seconds", "how long the snapshot is held"),
        ("held_batch", "in batches of how many those come"),
        ("retained_events", "how many events the long log holds"),
        ("load_seconds", "how long the load of many consumers is measured"),
        ("unvacuumed_seconds", "how long a server is without autovacuum"),
        ("waiting", "how many messages wait in the queues of scale, measured once more"),
    ):
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=_positive, default=getattr(default, name),
            help=help_text,
        )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, default=report.default_output(),
        help="where bench.json goes; the history of runs lies beside it",
    )  # fmt: skip
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
