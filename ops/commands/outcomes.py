"""What commands show of the units of duties."""

from __future__ import annotations

import typer

from ops.duties.units import DONE, DutyOutcome
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, show


def show_outcomes(outcomes: list[DutyOutcome], output: Format) -> None:
    """A report of duties. Exit code 1: not all is done."""
    shown = ("duty", "database", "topic", "partition", "subject", "state", "events", "seconds")
    rows = [each.row() for each in outcomes]
    show([{name: row[name] for name in (*shown, "error")} for row in rows], output)
    if any(each.state != DONE for each in outcomes):
        raise typer.Exit(EXIT_NO)
