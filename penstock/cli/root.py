"""The root of the command: its options, its sub-commands."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import typer

import penstock
from penstock.cli.commands import Commands

_HELP = """Events in the database that you already have.

The database is PENSTOCK_DATABASE_URL, or else DB_TYPE, DB_HOST, DB_PORT, DB_NAME, DB_USER and
DB_PASSWORD; in a checkout without these the embedded one, when it runs.
Exit codes: 0 done, 1 the answer is no, 2 wrong call, 3 database or machine.
"""

root = typer.Typer(
    cls=Commands,
    help=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(penstock.__version__)
        raise typer.Exit


@root.callback()
def options(
    schema: Annotated[
        str | None,
        typer.Option(help="The schema that holds Penstock, else PENSTOCK_SCHEMA."),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Say the version and leave.", is_eager=True, callback=_say_version
        ),
    ] = False,
) -> None:
    if schema is not None:
        from penstock.database import config

        # The environment, so that sub-commands, their threads and processes all see it.
        os.environ[config.SCHEMA_VARIABLE] = config.validate_schema(schema)


def _asks_nothing(arguments: list[str]) -> bool:
    """Whether the arguments only ask about the command itself, as --help does."""
    return not arguments or not {"--help", "--version"}.isdisjoint(arguments)


def _embedded() -> AbstractContextManager[None]:
    from penstock.cli.embedded import found_where_none_is_configured

    return found_where_none_is_configured()


def invoke(arguments: Sequence[str]) -> int:
    """Run the command with these arguments.  Returns the exit code."""
    given = list(arguments)
    try:
        with nullcontext() if _asks_nothing(given) else _embedded():
            root(given, prog_name="penstock")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0
