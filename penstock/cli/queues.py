"""``penstock queue``."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import typer

from penstock import database, subscriptions
from penstock.cli.output import Format, Output, as_dict, say, show, show_json
from penstock.cli.starts import START
from penstock.cli.transactions import own_transaction
from penstock.errors import InvalidArgument, SubscriptionNotFound
from penstock.subscriptions import queue

app = typer.Typer(
    help="Create, list, describe, count, look into, purge and redrive queues.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="QUEUE")]
Set = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="setting=value, as `describe` shows them.")
]


@app.command()
def create(
    name: Name,
    topic: Annotated[list[str], typer.Option("--topic", "-t", help="A topic to read; repeat.")],
    start: Annotated[str, typer.Option(help=START)] = "earliest",
    setting: Set = None,
) -> None:
    """Create a queue, or add topics to it."""
    given = _settings(setting)
    with own_transaction() as connection:
        added = queue.subscribe(connection, name, topic, start=start)
        if given:
            queue.configure(connection, name, **given)
    say(f"queue {name}: {added} topic{'' if added == 1 else 's'} added")


@app.command()
def configure(name: Name, setting: Set = None) -> None:
    """Change settings of a queue; the others stay."""
    given = _settings(setting)
    if not given:
        raise InvalidArgument("no setting was given", hint="add --set max_deliveries=3")
    with own_transaction() as connection:
        queue.configure(connection, name, **given)
    say(f"queue {name}: {', '.join(given)} changed")


@app.command("list")
def list_(output: Output = Format.table) -> None:
    """Show the queues and how many events each has, by state."""
    with database.connect() as connection:
        found = counted_queues(connection)
    show(found, output)


@app.command()
def describe(name: Name, output: Output = Format.table) -> None:
    """Show one queue: its topics, its settings, its counts, and who holds what."""
    with database.connect() as connection:
        settings = as_dict(queue.describe(connection, name))
        found = as_dict(subscriptions.describe_subscription(connection, name))
        counted = _counted(connection, name)
    fields = {
        "queue": name,
        "topics": list(found["topics"]),
        "paused_at": found["paused_at"],
        **settings,
        **{field: value for field, value in counted.items() if field != "queue"},
    }
    if output is Format.json:
        show_json(fields)
    else:
        show([{"field": name, "value": value} for name, value in fields.items()], output)


@app.command()
def statistics(name: Name, output: Output = Format.table) -> None:
    """Count the events of a queue exactly: ready, in flight, delayed, dead."""
    with database.connect() as connection:
        show([_counted(connection, name)], output)


@app.command()
def pointers(name: Name, output: Output = Format.table) -> None:
    """Show for each partition what comes next, is unfinished, and is hidden."""
    with database.connect() as connection:
        show([as_dict(each) for each in queue.pointers(connection, name)], output)


@app.command()
def peek(
    name: Name,
    max_events: Annotated[
        int, typer.Option("--max", min=1, max=1_000, help="The most events.")
    ] = 10,
    output: Output = Format.table,
) -> None:
    """Show the next events of a queue, and hand none out."""
    with database.connect() as connection:
        found = queue.peek(connection, name, max_events)
    rows = [
        {
            "state": each.state,
            "visible_at": each.visible_at,
            "deliveries": each.deliveries,
            "failures": each.failures,
            **as_dict(each.event),
        }
        for each in found
    ]
    show(rows, output)


@app.command()
def purge(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Its events are lost for this queue.")] = False,
    output: Output = Format.table,
) -> None:
    """Throw away all that a queue has not finished; its dead letters stay."""
    if not yes:
        raise InvalidArgument(
            "purge loses the events of the queue", hint="add --yes if you mean it"
        )
    with own_transaction() as connection:
        count = queue.purge(connection, name)
    _answer(name, "purged", count, output)


@app.command()
def redrive(
    name: Name,
    ids: Annotated[
        list[int] | None, typer.Argument(help="Ids as `penstock dead-letter list` shows them.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    output: Output = Format.table,
) -> None:
    """Make events of dead letters again, in their order, with new counts."""
    if bool(ids) == every:
        raise InvalidArgument("it is not clear which dead letters are meant", hint="ids, or --all")
    with own_transaction() as connection:
        count = queue.redrive(connection, name, ids or None)
    _answer(name, "redriven", count, output)


def counted_queues(connection: Any, name: str | None = None) -> list[dict[str, Any]]:
    """How many events each queue has, by state.  One that is deleted meanwhile is left out."""
    found: list[dict[str, Any]] = []
    for each in subscriptions.list_subscriptions(connection):
        if each.mode == "queue" and name in (None, each.name):
            with suppress(SubscriptionNotFound):
                found.append(_counted(connection, each.name))
    return found


def _counted(connection: Any, name: str) -> dict[str, Any]:
    return {"queue": name, **as_dict(queue.statistics(connection, name))}


def _settings(given: list[str] | None) -> dict[str, float | str]:
    """``setting=value``.  The database checks the names and the bounds."""
    found: dict[str, float | str] = {}
    for each in given or []:
        name, _, text = each.partition("=")
        if name == "order":
            found[name] = text
            continue
        try:
            number = float(text)
        except ValueError:
            raise InvalidArgument(
                f"{each!r} is not a setting", hint="write setting=number"
            ) from None
        found[name] = int(number) if number.is_integer() else number
    return found


def _answer(name: str, what: str, count: int, output: Format) -> None:
    if output is Format.json:
        show_json({"queue": name, what: count})
    else:
        say(f"queue {name}: {count} {what}")
