"""``penstock schema``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock import database
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, Output, say, show
from penstock.cli.transactions import own_transaction
from penstock.errors import ConfigurationError

app = typer.Typer(
    help="Schemas of payloads: which one a type of event has, and what the next one has to keep.",
    no_args_is_help=True,
)

Topic = Annotated[str, typer.Argument(help="namespace/path/topic")]
Type = Annotated[
    str, typer.Option("--type", "-t", help="A type of event; else all without one of their own.")
]


@app.command("set")
def set_(
    topic: Topic,
    file: Annotated[str, typer.Argument(help="The file of the schema, or -.")],
    *,
    type_: Type = "",
    kind: Annotated[str, typer.Option(help="json (JSON Schema) or avro.")] = "json",
    compatibility: Annotated[
        str | None,
        typer.Option(help="none, backward, forward or full; else as it is; at first backward."),
    ] = None,
) -> None:
    """Put a schema in force, if it keeps the compatibility of the present one."""
    from penstock.publishing.schemas.registry import set_schema

    try:
        definition = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read as text") from error
    with own_transaction() as connection:
        version = set_schema(
            connection, topic, definition, type=type_, kind=kind, compatibility=compatibility
        )
    say(f"version {version} of the schema of {type_ or 'every other type'} is in force in {topic}")


@app.command("list")
def list_(
    topic: Topic,
    *,
    all_versions: Annotated[bool, typer.Option("--all", help="The older versions too.")] = False,
    output: Output = Format.table,
) -> None:
    """Show which schemas a topic has."""
    from penstock.publishing.schemas.registry import list_schemas

    shown = ("type", "version", "kind", "compatibility", "set_at", "set_by")
    with database.connect() as connection:
        found = list_schemas(connection, topic, all_versions=all_versions)
    show([{name: getattr(each, name) for name in shown} for each in found], output)


@app.command("show")
def show_(
    topic: Topic,
    *,
    type_: Type = "",
    version: Annotated[int | None, typer.Option(min=1, help="Else the newest.")] = None,
) -> None:
    """Write a schema as it was given. Exit code 1: there is none."""
    from penstock.publishing.schemas.registry import list_schemas

    with database.connect() as connection:
        found = list_schemas(connection, topic, type=type_, all_versions=True)
    for each in found:
        if version in {None, each.version}:
            sys.stdout.write(each.definition.rstrip("\n") + "\n")
            return
    say(f"{topic} has no such schema of {type_ or 'every other type'}")
    raise typer.Exit(EXIT_NO)


@app.command("delete")
def delete(topic: Topic, *, type_: Type = "") -> None:
    """Remove a schema with all its versions. Exit code 1: there is none."""
    from penstock.publishing.schemas.registry import delete_schema

    with own_transaction() as connection:
        gone = delete_schema(connection, topic, type=type_)
    say(f"{gone} versions of the schema are gone")
    if not gone:
        raise typer.Exit(EXIT_NO)
