"""``penstock namespace``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import database, names
from penstock.cli.output import Format, Output, say, show

app = typer.Typer(help="Create and list namespaces.", no_args_is_help=True)


@app.command()
def create(
    path: str,
    parents: Annotated[
        bool, typer.Option("--parents", "-p", help="Create missing namespaces above it too.")
    ] = False,
) -> None:
    """Create a namespace."""
    with database.connect() as connection, connection.transaction():
        names.create_namespace(connection, path, parents=parents)
    say(f"created namespace {path}")


@app.command("list")
def list_(output: Output = Format.table) -> None:
    """List all namespaces."""
    with database.connect() as connection:
        show(names.list_namespaces(connection), output)
