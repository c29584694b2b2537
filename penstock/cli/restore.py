"""``penstock restore``: what a restore of the database lost, and going on after it."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import database
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, Output, say, show
from penstock.errors import ConfigurationError

app = typer.Typer(
    help="See what a restore of the database lost, and go on after it.", no_args_is_help=True
)


@app.command("status")
def status(output: Output = Format.table) -> None:
    """Show what lies beyond the log; exit code 1 when something does."""
    from penstock.log.histories import histories, restore_status as verb

    with database.connect(application_name="penstock restore") as connection:
        found = verb(connection)
        newest = histories(connection)[-1]
    show(found, output)
    say(f"history {newest.history} since {newest.opened_at:%Y-%m-%d %H:%M:%S%z}: {newest.reason}")
    if found:
        raise typer.Exit(EXIT_NO)


@app.command("reconcile")
def reconcile(
    reason: Annotated[str, typer.Argument(help="What was restored, and to when; it is recorded.")],
    yes: Annotated[bool, typer.Option("--yes", help="It opens a new history for good.")] = False,
) -> None:
    """Open the next history: readers ask again where they stand, and stopped partitions go on."""
    from penstock.log.histories import reconcile as verb

    if not yes:
        raise ConfigurationError(
            "reconcile takes every lease from its holder and cannot be undone",
            hint="look at `penstock restore status`, and say --yes if commits were lost",
        )
    with database.connect(application_name="penstock restore") as connection:
        say(f"history {verb(connection, reason)} has begun")
