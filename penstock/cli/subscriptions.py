"""``penstock subscription``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock import database, subscriptions
from penstock.cli.archive_targets import ArchiveTargets
from penstock.cli.output import Format, Output, as_dict, say, show, show_json
from penstock.cli.starts import START, start_in
from penstock.cli.transactions import own_transaction
from penstock.database import config
from penstock.errors import InvalidArgument
from penstock.leases.coordination.moving import move_subscription
from penstock.subscriptions import stream

app = typer.Typer(
    help="Create, list, describe, move, pause and delete subscriptions.", no_args_is_help=True
)

#: The store that is no other one.
DATABASE = "database"
To = Annotated[str, typer.Option("--to", help=START)]
Yes = Annotated[bool, typer.Option("--yes", help="Its positions are lost for good.")]


@app.command()
def create(
    subscription: str,
    topic: Annotated[list[str], typer.Option("--topic", "-t", help="A topic to read; repeat.")],
    start: Annotated[str, typer.Option(help=START)] = "earliest",
    target: ArchiveTargets = None,
) -> None:
    """Create a subscription, or add topics to it."""
    with own_transaction() as connection:
        begin = start_in(connection, topic, start, target)
        added = stream.subscribe(connection, subscription, topic, begin)
    say(f"subscription {subscription}: {added} topic{'' if added == 1 else 's'} added")


@app.command("list")
def list_(output: Output = Format.table) -> None:
    """Show the subscriptions: what they read, their times, and whether one is paused."""
    with database.connect() as connection:
        show(subscriptions.list_subscriptions(connection), output)


@app.command()
def removals(output: Output = Format.table) -> None:
    """Show the deleted subscriptions of which the sweep has rows to delete still."""
    with database.connect() as connection:
        show(subscriptions.removals(connection), output)


@app.command()
def describe(subscription: str, output: Output = Format.table) -> None:
    """Show one subscription, and where it stands on each partition."""
    with database.connect() as connection:
        found = as_dict(subscriptions.describe_subscription(connection, subscription))
        cursors = [as_dict(each) for each in subscriptions.lag(connection, subscription)]
    if output is Format.json:
        show_json({**found, "cursors": cursors})
        return
    for name, value in found.items():
        said = ", ".join(value) if isinstance(value, tuple) else value
        say(f"{name.replace('_', ' ')}: {'-' if value is None else said}")
    show(cursors, output)


@app.command()
def seek(
    subscription: str,
    topic: Annotated[str, typer.Argument(help="namespace/path/topic")],
    to: To,
    *,
    partition: Annotated[int | None, typer.Option(help="Only this one, else all.")] = None,
    yes: Yes = False,
    target: ArchiveTargets = None,
) -> None:
    """Go on reading a topic from another place; its holders lose their leases."""
    _require_yes(yes, "seek")
    with own_transaction() as connection:
        start = start_in(connection, [topic], to, target)
        if partition is None:
            moved = stream.reset(connection, subscription, start, topic=topic)
        else:
            done = stream.seek(connection, subscription, topic, partition, start)
            moved = {(topic, partition): done}
    for (_, number), done in moved.items():
        say(f"subscription {subscription}, partition {number}: reads on after {done}")


@app.command()
def reset(
    subscription: str,
    to: To,
    yes: Yes = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many events would be read.")
    ] = False,
    target: ArchiveTargets = None,
) -> None:
    """Go on reading from another place in all partitions of all topics, or in none."""
    if dry_run:
        with database.connect() as connection:
            start = _start_of(connection, subscription, to, target)
            counted = stream.replay_count(connection, subscription, start)
        for (topic, number), events in counted.items():
            say(f"subscription {subscription}, {topic} partition {number}: {events} events")
        say(f"subscription {subscription}: {sum(counted.values())} events would be read")
        return
    _require_yes(yes, "reset")
    with own_transaction() as connection:
        start = _start_of(connection, subscription, to, target)
        moved = stream.reset(connection, subscription, start)
    for (topic, number), done in moved.items():
        say(f"subscription {subscription}, {topic} partition {number}: reads on after {done}")


@app.command()
def pause(
    subscription: str,
    reason: Annotated[str, typer.Option(help="Why; shown to those who look at it later.")] = "",
) -> None:
    """Hand out no lease until it is resumed; consumers finish what they have in hand."""
    with own_transaction() as connection:
        changed = subscriptions.pause(connection, subscription, reason)
    if changed:
        say(f"subscription {subscription}: paused")
    else:
        said = f"; the reason is now: {reason}" if reason else ""
        say(f"subscription {subscription}: was paused already{said}")


@app.command()
def resume(subscription: str) -> None:
    """End a pause: hand out leases again."""
    with own_transaction() as connection:
        changed = subscriptions.resume(connection, subscription)
    say(f"subscription {subscription}: {'resumed' if changed else 'was not paused'}")


@app.command()
def move(
    subscription: str,
    to: Annotated[str, typer.Option("--to", help="etcd://, redis://, or `database` for its own.")],
    source: Annotated[str, typer.Option("--from", help="Where its leases live now.")] = DATABASE,
    output: Output = Format.table,
) -> None:
    """Move the leases and positions to another store.

    Stop the consumers first. Afterwards, start them with the new URL as their coordination.
    """
    url = config.database_url()
    stores = [url if each == DATABASE else each for each in (source, to)]
    if stores[0] == stores[1]:
        raise InvalidArgument(
            "the subscription is in that store already", hint="give another --to or --from"
        )
    moved = move_subscription(url, subscription, *stores)
    show(
        [
            {
                "subscription": subscription,
                "from": config.redact(source),
                "to": config.redact(to),
                "partitions": moved,
            }
        ],
        output,
    )


@app.command()
def delete(
    subscription: str,
    yes: Yes = False,
) -> None:
    """Remove a subscription; retention no longer waits for it."""
    _require_yes(yes, "delete")
    with own_transaction() as connection:
        stream.unsubscribe(connection, subscription)
    say(f"deleted subscription {subscription}")


def _start_of(connection: Any, subscription: str, to: str, target: list[str] | None) -> str:
    """A start for all topics of a subscription."""
    found = subscriptions.describe_subscription(connection, subscription)
    return start_in(connection, found.topics, to, target)


def _require_yes(yes: bool, verb: str) -> None:
    if not yes:
        raise InvalidArgument(
            f"{verb} loses the positions of the subscription", hint="add --yes if you mean it"
        )
