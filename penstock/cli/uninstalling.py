"""``penstock uninstall``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import database
from penstock.cli.output import Format, Output, say, show
from penstock.database import config
from penstock.errors import InvalidArgument


def uninstall(
    *,
    yes: Annotated[
        str | None, typer.Option("--yes", help="Drop it: the schema's name, so that you mean it.")
    ] = None,
    output: Output = Format.table,
) -> None:
    """Say what of Penstock is in the database, or drop all of it with --yes SCHEMA."""
    from penstock.topics.uninstalling import installed_parts, uninstall as drop

    schema = config.schema_name()
    if yes not in {None, schema}:
        raise InvalidArgument(f"the schema is {schema}, not {yes}", hint="nothing was dropped")
    with database.connect() as connection:
        show(drop(connection) if yes else installed_parts(connection), output)
    if not yes:
        say(f"nothing was dropped: penstock uninstall --yes {schema} drops what goes, for good")
