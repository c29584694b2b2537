"""``make demo``: a bank publishes, consumers follow, one is killed and one is paused.

At the end the demo compares every account in four places: the bank's table, the projection that the
consumers kept, the sum over the relayed files, and the sum that Spark computes from the archive.
Any difference is exit code 1. ``--mutant`` takes a guard out, to show that the demo can fail.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from penstock.errors import PenstockError
from tools.demo import faults, figures, platform, report
from tools.demo.stage import DemoFailed, Stage, lag

ROOT = Path(__file__).resolve().parents[2]
app = typer.Typer(add_completion=False, rich_markup_mode=None)
console = Console()


class Mutant(StrEnum):
    """The guards that can be taken out, to see the demo fail."""

    NONE = ""
    UNFENCED = "unfenced"
    OUTSIDE = "outside"


@app.command()
def main(
    *,
    transactions: Annotated[int, typer.Option(min=1000)] = 12_400,
    rate: Annotated[int, typer.Option(help="transactions a second")] = 450,
    directory: Path = ROOT / ".penstock" / "demo",
    mutant: Annotated[Mutant, typer.Option(help="take a guard out")] = Mutant.NONE,
    platform_too: Annotated[bool, typer.Option("--platform/--no-platform")] = True,
) -> None:
    """Run the demo; exit code 1 when a balance differs."""
    signal.signal(signal.SIGTERM, _leave)
    begun = time.monotonic()
    shutil.rmtree(directory / "relay", ignore_errors=True)
    shutil.rmtree(directory / "archive", ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    with Stage(directory.absolute(), mutant.value) as stage:
        outcome = _play(stage, transactions, rate, platform_too)
    report.show(console, outcome, time.monotonic() - begun, directory.absolute())
    raise typer.Exit(0 if outcome.equal else 1)


def _leave(number: int, frame: FrameType | None) -> None:
    """Exit through every ``with``, once, so that what was started is stopped."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _play(stage: Stage, transactions: int, rate: int, platform_too: bool) -> report.Outcome:
    expected = int(transactions * 2 * 0.9)
    with (
        Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of about {task.total:,.0f} events"),
            TimeElapsedColumn(),
            console=console,
        ) as progress,
    ):
        task = progress.add_task("preparing the bank", total=expected)

        def say(text: str) -> None:
            progress.update(task, description=text)

        stage.prepare()
        with stage.connect() as connection:
            stage.start_daemons()
            traffic = stage.start_traffic(transactions, rate)
            begun = time.monotonic()

            def reached(share: float) -> bool:
                done = faults.published(connection)
                progress.update(task, completed=done)
                return done >= share * expected or traffic.poll() is not None

            say("the bank is open")
            stage.wait_until(lambda: reached(0.15), "the bank published nothing")
            say("killing consumer-1 inside its transaction")
            faults.kill_in_the_middle(stage, "consumer-1")
            stage.wait_until(lambda: reached(0.3), "the bank stopped")
            say("pausing consumer-2 past its lease, with events in hand")
            faults.pause_before_transaction(stage, connection, "consumer-2")
            stage.wait_until(lambda: reached(0.5), "the bank stopped")
            say("pausing consumer-2 between its commit and COMMIT")
            faults.pause_inside_transaction(stage, connection, "consumer-2")
            say("the bank goes on")
            stage.wait_until(lambda: reached(1.5), "the bank did not close", 120)
            closed = time.monotonic()
            stage.wait_until(lambda: lag(connection) == 0, "the projection did not catch up")
            drained = time.monotonic()
            stage.stop_daemons()
            progress.update(task, completed=faults.published(connection))
            outcome = report.Outcome(
                bank=figures.bank(connection),
                projection=figures.projected(connection),
                counts=figures.counts(connection, stage.refused_commits()),
                latency=figures.latency(connection),
                bank_seconds=closed - begun,
                catch_up_seconds=drained - closed,
            )
            if platform_too:
                say("Dagster: relay, seal, archive, clean")
                platform.run(stage, outcome)
    return outcome


if __name__ == "__main__":
    try:
        app()
    except (DemoFailed, PenstockError) as error:
        console.print(f"[bold red]the demo failed:[/] {error}")
        sys.exit(1)
