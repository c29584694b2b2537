"""``penstock target``: the places that archives are kept in."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from ops.commands.installation import Database, Installation
from ops.commands.sessions import Engine, once
from ops.duties.engine import AUTO
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, Output, say, show
from penstock.database import connect
from penstock.errors import TargetUnavailable

target = typer.Typer(help="The places that archives are kept in.", no_args_is_help=True)


@target.command("list")
def target_list(database: Database = None, output: Output = Format.table) -> None:
    """Show every target: whether it is there, its copies, what lacks one there, and its speed."""
    from ops.archive.overview import target_states

    here = Installation(database)
    show(target_states(here.url, here.policies), output)


@target.command("topics")
def target_topics(database: Database = None, output: Output = Format.table) -> None:
    """Show the archived topics, and how many log epochs have too few copies.

    Exit code 1: a log epoch has fewer than its quorum.
    """
    from ops.archive.overview import archived_topics

    here = Installation(database)
    with connect(here.url) as connection:
        found = archived_topics(connection, here.policies)
    show(found, output)
    if any(each.below_quorum for each in found):
        raise typer.Exit(EXIT_NO)


@target.command("audit")
def target_audit(
    topics: Annotated[
        list[str] | None, typer.Argument(help="namespace/path/topic ...; else all topics.")
    ] = None,
    *,
    target: Annotated[
        list[str] | None,
        typer.Option(help="NAME=DIRECTORY, or a NAME of the policy file; repeat. Else all."),
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=3_650, help="Read only today's share of a round of so long.")
    ] = 1,
    engine: Engine = AUTO,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Read recorded copies back, and forget those that are damaged: backfill makes them again.

    Exit code 1: one was damaged, or a target is not there.
    """
    from ops.commands.auditing import audit_targets

    here = Installation(database)
    places = [here.target(each) for each in target] if target else here.known_targets()
    with ExitStack() as stack:
        found = audit_targets(here.url, topics, places, days=days, engine=engine, spark=once(stack))
    show(found.rows, output)
    for text in found.said:
        say(text)
    if found.said:
        raise typer.Exit(EXIT_NO)


@target.command("adopt")
def target_adopt(
    place: Annotated[str, typer.Argument(help="NAME=DIRECTORY, or a NAME of the policy file.")],
    yes: Annotated[
        bool, typer.Option("--yes", help="Also when it does not hold the copies recorded on it.")
    ] = False,
    database: Database = None,
) -> None:
    """Mark a place as a target: one from before markers, or a new place for a lost target."""
    from penstock.archive.markers import adopt_target

    here = Installation(database)
    wanted = here.target(place)
    try:
        is_new = adopt_target(here.url, wanted, even_without_copies=yes)
    except TargetUnavailable as error:
        raise TargetUnavailable(
            error.message, hint="mount it; or say --yes if this place takes over from a lost one"
        ) from None
    say(f"{wanted.name} is {'now' if is_new else 'already'} marked as a target of ours")
