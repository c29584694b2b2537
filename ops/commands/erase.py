"""``penstock erase`` and ``penstock erasures``."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.commands.installation import Database, Installation
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, Output, say, show
from penstock.database import connect
from penstock.errors import ConfigurationError


def erase(
    *,
    topic: Annotated[str, typer.Option("--topic", help="namespace/path/topic")],
    reason: Annotated[str, typer.Option("--reason", help="Kept as the record of the erasure.")],
    key: Annotated[str | None, typer.Option("--key", help="All events of this key.")] = None,
    event_id: Annotated[str | None, typer.Option("--event-id", help="This one event.")] = None,
    replace_key: Annotated[
        bool, typer.Option("--replace-key", help="Erase the key of these events too.")
    ] = False,
    target: Annotated[
        list[str] | None,
        typer.Option(help="NAME=DIRECTORY, instead of the policy file's place; repeat."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="A target that is lost for good; repeat.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="It removes payloads for good.")] = False,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Replace payload and headers of events by tombstones, in the database and in the archive.

    It can be stopped and run again. Exit code 1: nothing was found.
    """
    from ops.erase import What, erase as verb

    if not (yes or dry_run):
        raise ConfigurationError(
            "erase removes payloads for good", hint="look with --dry-run, then add --yes"
        )
    left_out = without or []
    here = Installation(database)
    given = {place.name: place for place in map(here.target, target or [])}
    known = {place.name: place for place in here.known_targets()} | given
    places = [place for name, place in known.items() if name not in left_out]
    done = verb(
        here.url,
        What(topic, event_id=event_id, key=key, replace_key=replace_key),
        reason,
        places,
        without=left_out,
        dry_run=dry_run,
    )
    show([done], output)
    if output is Format.table:
        say("not erased, because Penstock does not reach it:")
        for each in done.outside:
            say(f"- {each}")
    counts = (
        done.events_in_database,
        done.events_in_archive,
        done.letters,
        done.files,
        done.copies,
    )
    if not any(counts):
        raise typer.Exit(EXIT_NO)


def erasures(
    topic: Annotated[str | None, typer.Argument(help="Else of all topics.")] = None,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """List erasures: who, when, why, and how many events; never what was in them."""
    from ops.erase import list_erasures

    with connect(Installation(database).url) as connection:
        show(list_erasures(connection, topic), output)
