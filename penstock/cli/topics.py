"""``penstock topic``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import database, names
from penstock.cli.output import Format, Output, say, show

app = typer.Typer(help="Create, list and describe topics.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(help="namespace/path/topic")]


@app.command()
def create(
    topic: Topic,
    partitions: Annotated[int, typer.Option("--partitions", "-n")] = 1,
    create_namespaces: Annotated[
        bool, typer.Option("--create-namespaces", "-p", help="Create missing namespaces too.")
    ] = False,
) -> None:
    """Create a topic."""
    with database.connect() as connection, connection.transaction():
        names.create_topic(connection, topic, partitions, create_namespaces=create_namespaces)
    say(f"created topic {topic} with {partitions} partition{'s' if partitions > 1 else ''}")


@app.command("list")
def list_(
    namespace: Annotated[str, typer.Argument(help="Only at or below this namespace.")] = "",
    output: Output = Format.table,
) -> None:
    """List topics."""
    with database.connect() as connection:
        show(names.list_topics(connection, namespace), output)


@app.command()
def describe(topic: Topic, output: Output = Format.table) -> None:
    """Show the partitions of a topic and what of each can be fetched."""
    with database.connect() as connection:
        show(names.describe_topic(connection, topic).partitions, output)
