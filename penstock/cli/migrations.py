"""``penstock migrate``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, Output, say, show, show_json
from penstock.database import config, migrate as runner


def migrate(
    *,
    print_: Annotated[
        bool, typer.Option("--print", help="Write the SQL instead of running it.")
    ] = False,
    since: Annotated[
        int, typer.Option(min=0, help="With --print: only what follows this migration.")
    ] = 0,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 when something is to be applied.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="List the migrations and their state.")
    ] = False,
    schema: Annotated[str | None, typer.Option(help="Install into this schema.")] = None,
    output: Output = Format.table,
) -> None:
    """Install the schema, or bring it up to date."""
    if print_ + check + status > 1:
        raise typer.BadParameter("--print, --check and --status exclude each other")
    schema = config.validate_schema(schema) if schema else config.schema_name()
    if print_:
        sys.stdout.write(runner.print_sql(schema, since=since))
    elif check:
        _check(schema, output)
    elif status:
        show(runner.status(schema=schema), output)
    else:
        _migrate(schema, output)


def _check(schema: str, output: Format) -> None:
    pending = runner.check(schema=schema)
    if pending or output is Format.json:
        show(pending, output)
    if pending:
        raise typer.Exit(EXIT_NO)
    say(f"schema {schema}: up to date")


def _migrate(schema: str, output: Format) -> None:
    result = runner.migrate(schema=schema)
    if output is Format.json:
        show_json(result)
        return
    for name in result.applied:
        say(f"applied {name}")
    say(f"schema {schema}: at migration {result.version:04d}")
