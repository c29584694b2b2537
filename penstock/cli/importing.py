"""``penstock import``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.output import Format, Output, say, show
from penstock.cli.transactions import own_transaction
from penstock.errors import InvalidArgument
from penstock.publishing.importing import SUFFIX, import_outbox, import_pgmq

app = typer.Typer(
    help="Bring what another outbox or queue has not delivered into the log.", no_args_is_help=True
)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count; nothing is locked.")]


@app.command()
def outbox(
    table: Annotated[str, typer.Argument(help="TABLE or SCHEMA.TABLE")] = "outbox_events",
    *,
    namespace: Annotated[
        str, typer.Option(help="A topic of the old table becomes NAMESPACE/TOPIC.")
    ] = "",
    topic: Annotated[
        list[str] | None, typer.Option(help="OLD=NEW, for a topic by itself; several times.")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Failed rows too.")] = False,
    dry_run: DryRun = False,
    output: Output = Format.table,
) -> None:
    """The Go package's outbox_events: pending and in-flight rows, in one transaction."""
    named = dict(map(_pair, topic or []))

    def address(old: str) -> str:
        found = named.get(old) or (f"{namespace}/{old}" if namespace else old)
        if "/" not in found:
            raise InvalidArgument(
                f"the topic {old!r} has no namespace", hint="give --namespace or --topic OLD=NEW"
            )
        return found

    with own_transaction() as connection:
        done = import_outbox(connection, table, address, with_failed=failed, dry_run=dry_run)
    show(done, output)
    _say(table, dry_run=dry_run)


@app.command()
def pgmq(
    queue: Annotated[str, typer.Argument(help="The queue's name.")],
    topic: Annotated[str, typer.Argument(help="namespace/path/topic")],
    *,
    dry_run: DryRun = False,
    output: Output = Format.table,
) -> None:
    """A queue of pgmq: all its messages, in one transaction."""
    with own_transaction() as connection:
        done = import_pgmq(connection, queue, topic, dry_run=dry_run)
    show(done, output)
    _say(f"pgmq.q_{queue.lower()}", dry_run=dry_run)


def _pair(text: str) -> tuple[str, str]:
    old, found, new = text.partition("=")
    if not (old and found and new):
        raise InvalidArgument(f"--topic {text!r} is not OLD=NEW")
    return old, new


def _say(table: str, *, dry_run: bool) -> None:
    say("nothing was changed" if dry_run else f"{table} is now {table}{SUFFIX}")
