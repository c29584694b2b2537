"""``penstock bookmark``."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from penstock import database
from penstock.cli.archive_targets import ArchiveTargets
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.namespaces import done
from penstock.cli.output import Format, Output, show
from penstock.cli.starts import START, start_in
from penstock.cli.transactions import own_transaction
from penstock.errors import InvalidArgument
from penstock.log import bookmarks
from penstock.log.starts import Start

app = typer.Typer(
    help="Name positions of a topic, to begin there later: --to bookmark:NAME.",
    no_args_is_help=True,
)

Topic = Annotated[str, typer.Argument(help="namespace/path/topic")]
Name = Annotated[str, typer.Argument(help="Unique in the topic.")]
_OF_ONE = re.compile(r"(\d{1,9})=(.+)")


@app.command()
def place(
    topic: Topic,
    name: Name,
    *,
    at: Annotated[
        list[str] | None,
        typer.Option("--at", help=f"{START}. Or PARTITION=START for each partition; repeat."),
    ] = None,
    target: ArchiveTargets = None,
    output: Output = Format.table,
) -> None:
    """Place a bookmark in all partitions of a topic; else at the end of the log."""
    start = _start(at or ["latest"])
    with own_transaction() as connection:
        if isinstance(start, str):
            start = start_in(connection, [topic], start, target)
        placed = bookmarks.place_bookmark(connection, topic, name, start)
    rows = [
        {"topic": topic, "name": name, "partition": partition, "position": position}
        for partition, position in sorted(placed.items())
    ]
    show(rows, output)


@app.command("list")
def list_(
    topic: Annotated[str | None, typer.Argument(help="Else of all topics.")] = None,
    output: Output = Format.table,
) -> None:
    """List bookmarks: the last sequence before each, in every partition of its topic."""
    with database.connect() as connection:
        show(bookmarks.list_bookmarks(connection, topic), output)


@app.command()
def drop(topic: Topic, name: Name, output: Output = Format.table) -> None:
    """Remove a bookmark. Exit code 1: the topic has none of this name."""
    with own_transaction() as connection:
        was_there = bookmarks.drop_bookmark(connection, topic, name)
    text = f"bookmark {name} of {topic} is dropped" if was_there else f"{topic} has no {name}"
    done(text, output, topic=topic, name=name, dropped=was_there)
    if not was_there:
        raise typer.Exit(EXIT_NO)


def _start(given: list[str]) -> str | dict[int, Start]:
    found = [_OF_ONE.fullmatch(each) for each in given]
    starts: dict[int, Start] = {int(each[1]): each[2] for each in found if each is not None}
    if not starts and len(given) == 1:
        return given[0]
    if len(starts) < len(given):
        raise InvalidArgument(
            "--at is given more than once, and not as one start for each partition",
            hint="give one START for all partitions, or PARTITION=START for each of them",
        )
    return starts
