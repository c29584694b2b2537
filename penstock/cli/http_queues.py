"""The commands of queues through an HTTP gateway."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.output import Format, Output, as_dict, say, show, show_json
from penstock.errors import InvalidArgument
from penstock.http import GatewayClient

queues = typer.Typer(
    help="Create queues, receive and finish their messages, count and redrive them.",
    no_args_is_help=True,
)
dead_letters = typer.Typer(
    help="Messages that a queue has given up: look at them, hand them out again.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="Its name below the account.")]
Receipts = Annotated[list[str], typer.Argument(help="As `receive` has written them.")]
Ids = Annotated[list[int] | None, typer.Argument(help="Ids as `dead-letter list` shows them.")]
Every = Annotated[bool, typer.Option("--all", help="All of them.")]


@queues.command()
def create(name: Name) -> None:
    """Create a queue, or leave it as it is."""
    with GatewayClient() as gateway:
        is_new = gateway.create_queue(name)
    say(f"created queue {name}" if is_new else f"queue {name} is there")


@queues.command()
def receive(
    name: Name,
    *,
    max_events: Annotated[int, typer.Option("--max", min=1, max=100, help="The most events.")] = 1,
    visibility: Annotated[
        float | None, typer.Option(help="Hidden from others for so many seconds.")
    ] = None,
    wait: Annotated[float, typer.Option(min=0, max=30, help="For the first one, seconds.")] = 0.0,
    output: Output = Format.table,
) -> None:
    """Receive messages; finish each with `acknowledge` and its receipt."""
    with GatewayClient() as gateway:
        found = gateway.receive(name, max_events, visibility_seconds=visibility, wait_seconds=wait)
    rows = [
        {
            "receipt": str(each.receipt),
            "deliveries": each.deliveries,
            "deadline": each.deadline,
            **as_dict(each.event),
        }
        for each in found
    ]
    show(rows, output)


@queues.command()
def acknowledge(name: Name, receipts: Receipts) -> None:
    """Finish messages: all or none."""
    with GatewayClient() as gateway:
        gateway.acknowledge(name, receipts)
    say(f"queue {name}: {len(receipts)} acknowledged")


@queues.command()
def release(name: Name, receipts: Receipts) -> None:
    """Put messages back that nobody began."""
    with GatewayClient() as gateway:
        gateway.release(name, receipts)
    say(f"queue {name}: {len(receipts)} released")


@queues.command()
def extend(
    name: Name,
    receipts: Receipts,
    *,
    seconds: Annotated[float, typer.Option(help="From now on.")] = 30.0,
) -> None:
    """Hide messages for longer; writes the new receipts."""
    with GatewayClient() as gateway:
        for each in gateway.extend(name, receipts, seconds):
            typer.echo(str(each))


@queues.command()
def statistics(name: Name, output: Output = Format.table) -> None:
    """Count the messages of a queue: ready, in flight, delayed, dead."""
    with GatewayClient() as gateway:
        show([{"queue": name, **as_dict(gateway.counts(name))}], output)


@queues.command("redrive")
def redrive_queue(
    name: Name, ids: Ids = None, *, every: Every = False, output: Output = Format.table
) -> None:
    """Make messages of dead letters again, in their order."""
    _redrive(name, ids, output, every=every)


@dead_letters.command("list")
def list_(
    name: Name,
    *,
    key: Annotated[str | None, typer.Option("--key", help="Only of this key.")] = None,
    type_: Annotated[str | None, typer.Option("--type", help="Only of this type.")] = None,
    state: Annotated[str | None, typer.Option(help="dead, parked or redriven")] = None,
    before: Annotated[int | None, typer.Option(help="The next page: older than this id.")] = None,
    max_rows: Annotated[
        int, typer.Option("--max", min=1, max=1_000, help="The most letters.")
    ] = 100,
    output: Output = Format.table,
) -> None:
    """Show dead letters without their payloads, newest first."""
    filters = {"key": key, "type": type_, "state": state, "before_id": before}
    with GatewayClient() as gateway:
        show(gateway.dead_letters(name, max_rows=max_rows, **filters), output)


@dead_letters.command("redrive")
def redrive_letters(
    name: Name, ids: Ids = None, *, every: Every = False, output: Output = Format.table
) -> None:
    """Hand dead letters out again."""
    _redrive(name, ids, output, every=every)


def _redrive(name: str, ids: list[int] | None, output: Format, *, every: bool) -> None:
    if bool(ids) == every:
        raise InvalidArgument("it is not clear which dead letters are meant", hint="ids, or --all")
    with GatewayClient() as gateway:
        count = gateway.redrive(name, ids or None)
    if output is Format.json:
        show_json({"queue": name, "redriven": count})
    else:
        say(f"queue {name}: {count} redriven")
