"""``penstock hold``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import database
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.namespaces import done
from penstock.cli.output import Format, Output, show
from penstock.cli.transactions import own_transaction
from penstock.topics import holds

app = typer.Typer(
    help="Keep events from retention until a legal hold is released.", no_args_is_help=True
)

Topic = Annotated[str, typer.Argument(help="namespace/path/topic")]
Name = Annotated[str, typer.Argument(help="Of the case; one open hold of a topic has it.")]
Reason = Annotated[str, typer.Option("--reason", help="Kept as the record of the hold.")]


@app.command()
def place(
    topic: Topic,
    name: Name,
    reason: Reason,
    *,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="Only this one; else all.")
    ] = None,
    first: Annotated[
        int | None, typer.Option("--from", help="The first sequence; needs --partition.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--to", help="The last sequence; needs --partition.")
    ] = None,
    output: Output = Format.table,
) -> None:
    """Hold a topic, a partition or a range of sequences: nothing of it is removed any more."""
    with own_transaction() as connection:
        gone = holds.place_hold(
            connection,
            topic,
            name,
            reason,
            partition=partition,
            first_sequence=first,
            last_sequence=last,
        )
    left = f"; {gone} of its events were removed from the database before" if gone else ""
    done(f"hold {name} is on {topic}{left}", output, topic=topic, name=name, removed_before=gone)


@app.command()
def release(topic: Topic, name: Name, reason: Reason, output: Output = Format.table) -> None:
    """Release a hold; its record stays. Exit code 1: there is no open one of this name."""
    with own_transaction() as connection:
        was_open = holds.release_hold(connection, topic, name, reason)
    text = f"hold {name} on {topic} is released" if was_open else f"no hold {name} is on {topic}"
    done(text, output, topic=topic, name=name, released=was_open)
    if not was_open:
        raise typer.Exit(EXIT_NO)


@app.command("list")
def list_(
    topic: Annotated[str | None, typer.Argument(help="Else of all topics.")] = None,
    *,
    released: Annotated[bool, typer.Option("--released", help="Also those that are over.")] = False,
    output: Output = Format.table,
) -> None:
    """List holds: what they cover, why, since when and by whom."""
    with database.connect() as connection:
        show(holds.list_holds(connection, topic, with_released=released), output)
