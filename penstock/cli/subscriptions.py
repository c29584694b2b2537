"""``penstock subscription``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import database, names, stream
from penstock.cli.output import Format, Output, say, show
from penstock.cli.topics import Topic
from penstock.cli.transactions import own_transaction
from penstock.errors import InvalidArgument, SubscriptionNotFound

app = typer.Typer(help="Create, list, move and delete subscriptions.", no_args_is_help=True)

_START = "earliest, latest, or the first sequence to read"


@app.command()
def create(
    subscription: str,
    topic: Annotated[list[str], typer.Option("--topic", "-t", help="A topic to read; repeat.")],
    start: Annotated[str, typer.Option(help=_START)] = "earliest",
) -> None:
    """Create a subscription, or add topics to it."""
    with own_transaction() as connection:
        added = stream.subscribe(connection, subscription, topic, start)
    say(f"subscription {subscription}: {added} topic{'' if added == 1 else 's'} added")


@app.command("list")
def list_(
    subscription: Annotated[str | None, typer.Argument(help="Only this one.")] = None,
    output: Output = Format.table,
) -> None:
    """Show where subscriptions stand on each partition, and who holds it."""
    with database.connect() as connection:
        found = stream.lag(connection, subscription)
    if subscription is not None and not found:
        raise SubscriptionNotFound(f"there is no subscription {subscription!r}")
    show(found, output)


@app.command()
def seek(
    subscription: str,
    topic: Topic,
    to: Annotated[str, typer.Option("--to", help=_START)],
    partition: Annotated[int | None, typer.Option(help="Only this one, else all.")] = None,
) -> None:
    """Read on from somewhere else; present holders lose their leases."""
    with own_transaction() as connection:
        ranges = names.describe_topic(connection, topic).partitions
        every = [each.partition for each in ranges]
        for number in every if partition is None else [partition]:
            done = stream.seek(connection, subscription, topic, number, to)
            say(f"subscription {subscription}, partition {number}: reads on after {done}")


@app.command()
def delete(
    subscription: str,
    yes: Annotated[bool, typer.Option("--yes", help="Its positions are lost for good.")] = False,
) -> None:
    """Remove a subscription; it holds back no event any more."""
    if not yes:
        raise InvalidArgument(
            "delete loses the positions of the subscription", hint="say --yes if that is meant"
        )
    with own_transaction() as connection:
        stream.unsubscribe(connection, subscription)
    say(f"deleted subscription {subscription}")
