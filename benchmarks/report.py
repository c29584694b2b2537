"""The results of a run: a table on the terminal and ``.penstock/bench.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.history import TOLERATED, Compared
from benchmarks.measure import Figure


def default_output() -> Path:
    """``.penstock/bench.json`` at the root of the checkout."""
    return Path(__file__).resolve().parents[1] / ".penstock" / "bench.json"


def write(figures: Sequence[Figure], output: Path) -> None:
    """Write the figures of this run only, so that no old figure looks new."""
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_suffix(".unfinished")
    unfinished.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
    unfinished.replace(output)


def show(console: Console, figures: Sequence[Figure], rounds: int) -> None:
    """Print the table."""
    table = Table(title=f"Medians of {rounds} alternating pairs")
    table.add_column("engine", no_wrap=True)
    table.add_column("name", no_wrap=True)
    table.add_column("against")
    for heading in ("rows", "batch", "Penstock", "peer", "ratio", "aim"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("unit")
    for figure in figures:
        table.add_row(
            figure.engine,
            figure.name,
            figure.against,
            f"{figure.rows:,}",
            f"{figure.batch:,}",
            _amount(figure.value),
            "" if figure.peer is None else _amount(figure.peer),
            "" if figure.ratio is None else f"{figure.ratio:.2f}",
            _judged(figure),
            figure.unit,
        )
    console.print(table)


def line(figure: Figure) -> str:
    """A figure in one line, printed during the run."""
    ratio = "" if figure.ratio is None else f", ratio {figure.ratio:.2f}"
    return f"{figure.name}: {_amount(figure.value)} {figure.unit}{ratio}"


def compare(console: Console, compared: Sequence[Compared]) -> None:
    """Print which figures fell since the last run that can be compared."""
    if not compared:
        console.print("no earlier run can be compared: same settings, a machine of a like score")
        return
    fell = [each for each in compared if each.fell]
    console.print(
        f"{len(compared)} figures compared with the last run of each,"
        f" {len(fell)} fell by more than {TOLERATED:.0%}"
    )
    for each in fell:
        console.print(f"  {fall(each)}", highlight=False)


def fall(compared: Compared) -> str:
    """A figure that fell, in one line."""
    now, before = compared.now, compared.before
    ratio = ""
    if now.ratio is not None and before.ratio is not None:
        ratio = f", ratio {before.ratio:.2f} -> {now.ratio:.2f}"
    return (
        f"{now.engine} {now.name}: {_amount(before.value)} -> {_amount(now.value)} {now.unit}"
        f"{ratio}; before: {compared.run.date}, commit {compared.run.commit}"
    )


def _amount(value: float) -> str:
    """Rates have no decimals, milliseconds and percentages one."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"


def _judged(figure: Figure) -> str:
    if figure.aim is None:
        return ""
    return f"{figure.aim} " + ("[green]met" if figure.met else "[red]missed")


def busy() -> str:
    """How loaded the machine was.  Absolute figures depend on it."""
    return f"{os.cpu_count()} cores, load of the last minute {os.getloadavg()[0]:.1f}"
