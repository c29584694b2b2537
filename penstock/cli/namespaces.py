"""``penstock namespace``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import database
from penstock.cli.output import Format, Output, say, show, show_json
from penstock.cli.transactions import own_transaction
from penstock.errors import InvalidArgument
from penstock.topics import names

app = typer.Typer(help="Create, rename, move, delete and list namespaces.", no_args_is_help=True)

Path = Annotated[str, typer.Argument(help="name/name/...")]


@app.command()
def create(
    path: Path,
    parents: Annotated[
        bool, typer.Option("--parents", "-p", help="Create missing namespaces above it too.")
    ] = False,
    output: Output = Format.table,
) -> None:
    """Create a namespace."""
    with own_transaction() as connection:
        names.create_namespace(connection, path, parents=parents)
    done(f"created namespace {path}", output, namespace=path)


@app.command()
def rename(path: Path, new_name: str, output: Output = Format.table) -> None:
    """Give a namespace another name; what is below it follows."""
    with own_transaction() as connection:
        new_path = names.rename_namespace(connection, path, new_name)
    done(f"namespace {path} is now {new_path}", output, namespace=new_path)


@app.command()
def move(
    path: Path,
    new_parent: Annotated[str, typer.Argument(help='Its new parent; "" is the root.')],
    output: Output = Format.table,
) -> None:
    """Move a namespace with all below it under another one; the rights there hold for it."""
    with own_transaction() as connection:
        new_path = names.move_namespace(connection, path, new_parent)
    done(f"namespace {path} is now {new_path}", output, namespace=new_path)


@app.command()
def delete(
    path: Path,
    with_topics: Annotated[
        bool, typer.Option("--with-topics", help="Also when topics are below it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="The events of its topics are lost.")] = False,
    output: Output = Format.table,
) -> None:
    """Delete a namespace and all below it."""
    if with_topics and not yes:
        raise InvalidArgument(
            "delete loses the events of all topics in the namespace",
            hint="add --yes if you mean it",
        )
    with own_transaction() as connection:
        topics = names.delete_namespace(connection, path, with_topics=with_topics)
    done(f"deleted namespace {path} and {topics} topics", output, namespace=path, topics=topics)


@app.command("list")
def list_(output: Output = Format.table) -> None:
    """List all namespaces."""
    with database.connect() as connection:
        show(names.list_namespaces(connection), output)


def done(text: str, output: Format, **record: str | int) -> None:
    """Say what a command has done, or write it as one JSON object."""
    if output is Format.json:
        show_json(record)
    else:
        say(text)
