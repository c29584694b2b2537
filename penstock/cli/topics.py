"""``penstock topic``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import database
from penstock.cli.namespaces import done
from penstock.cli.output import Format, Output, as_dict, say, show, show_json
from penstock.cli.transactions import own_transaction
from penstock.errors import InvalidArgument
from penstock.topics import names

app = typer.Typer(
    help="Create, rename, move, resize, delete, list and describe topics.", no_args_is_help=True
)

Topic = Annotated[str, typer.Argument(help="namespace/path/topic")]


@app.command()
def create(
    topic: Topic,
    *,
    partitions: Annotated[int, typer.Option("--partitions", "-n", help="How many.")] = 1,
    strategy: Annotated[
        str, typer.Option(help="crc32, round_robin, explicit or client:NAME")
    ] = "crc32",
    create_namespaces: Annotated[
        bool, typer.Option("--create-namespaces", "-p", help="Create missing namespaces too.")
    ] = False,
    if_not_exists: Annotated[
        bool,
        typer.Option(
            "--if-not-exists",
            help="Leave an existing topic as it is; it may have more partitions, not fewer.",
        ),
    ] = False,
    output: Output = Format.table,
) -> None:
    """Create a topic."""
    with own_transaction() as connection:
        names.create_topic(
            connection,
            topic,
            partitions,
            strategy=strategy,
            create_namespaces=create_namespaces,
            if_not_exists=if_not_exists,
        )
        if if_not_exists:
            partitions = len(names.describe_topic(connection, topic).partitions)
    did = f"topic {topic} is there" if if_not_exists else f"created topic {topic}"
    text = f"{did} with {partitions} partition{'s' if partitions > 1 else ''}"
    done(text, output, topic=topic, partitions=partitions, strategy=strategy)


@app.command()
def rename(topic: Topic, new_name: str, output: Output = Format.table) -> None:
    """Give a topic another name in its namespace; its events and subscriptions stay."""
    with own_transaction() as connection:
        address = names.rename_topic(connection, topic, new_name)
    done(f"topic {topic} is now {address}", output, topic=address)


@app.command()
def move(topic: Topic, namespace: str, output: Output = Format.table) -> None:
    """Move a topic into another namespace; the rights there hold for it."""
    with own_transaction() as connection:
        address = names.move_topic(connection, topic, namespace)
    done(f"topic {topic} is now {address}", output, topic=address)


@app.command()
def resize(topic: Topic, partitions: int, output: Output = Format.table) -> None:
    """Give a topic more partitions; keys may go to other partitions from then on."""
    with own_transaction() as connection:
        before = names.resize_topic(connection, topic, partitions)
    text = f"topic {topic} has {partitions} partitions, it had {before}"
    done(text, output, topic=topic, partitions=partitions, before=before)


@app.command()
def delete(
    topic: Topic,
    with_subscriptions: Annotated[
        bool, typer.Option("--with-subscriptions", help="Also when subscriptions read it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Its events are lost for good.")] = False,
    output: Output = Format.table,
) -> None:
    """Delete a topic with its events."""
    if not yes:
        raise InvalidArgument(
            "delete loses the events of the topic", hint="add --yes if you mean it"
        )
    with own_transaction() as connection:
        names.delete_topic(connection, topic, with_subscriptions=with_subscriptions)
    done(f"deleted topic {topic}", output, topic=topic)


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
    """Show what is set for a topic, its partitions and what of each can be fetched."""
    with database.connect() as connection:
        found = as_dict(names.describe_topic(connection, topic))
    if output is Format.json:
        show_json(found)
        return
    partitions = found.pop("partitions")
    show([found], output)
    say("")
    show(partitions, output)
