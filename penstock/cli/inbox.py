"""``penstock inbox``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock import database
from penstock.cli.output import say
from penstock.database import config
from penstock.subscriptions import inbox

app = typer.Typer(
    help="The table by which an application's own database knows what was handled.",
    no_args_is_help=True,
)


@app.command()
def create() -> None:
    """Make the table in the database that PENSTOCK_DATABASE_URL names: here the application's."""
    with database.connect() as connection:
        inbox.create(connection)
    say("the inbox is there: penstock_inbox")


@app.command("print")
def print_(
    dialect: Annotated[
        str | None, typer.Option(help="postgres or mysql, else that of the database.")
    ] = None,
) -> None:
    """Write the statement that makes it, for the application's own migrations."""
    chosen = dialect or config.dialect_of_url(config.database_url())
    sys.stdout.write(inbox.definition(chosen))
