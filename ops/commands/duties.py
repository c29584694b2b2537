"""``penstock duty`` and ``penstock audit``: duties over many databases, and the proof of a log."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from ops.commands.installation import Database, Installation
from ops.commands.outcomes import show_outcomes
from ops.commands.platform import Topic
from ops.commands.sessions import Engine, spark_session
from ops.duties import verbs
from ops.duties.engine import AUTO
from ops.duties.setup import Setup
from ops.duties.units import DONE, MAIN
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, Output, show
from penstock.database import config
from penstock.errors import ConfigurationError
from penstock.spark.options import DatabaseAddress

app = typer.Typer(
    help="Sequence or sweep many databases at once, here or on Spark.", no_args_is_help=True
)

Databases = Annotated[
    list[str] | None,
    typer.Option(
        "--database", help="NAME=VARIABLE: the environment variable with its address; repeat."
    ),
]


@app.command()
def sequence(
    databases: Databases = None, engine: Engine = AUTO, output: Output = Format.table
) -> None:
    """Give committed events their sequences, once, in each of these databases."""
    with ExitStack() as stack:
        outcomes = verbs.sequence(
            _setup(databases),
            engine=engine,
            spark=lambda: stack.enter_context(spark_session()),
        )
    show_outcomes(outcomes, output)


@app.command()
def sweep(
    databases: Databases = None, engine: Engine = AUTO, output: Output = Format.table
) -> None:
    """Do in each of these databases what `penstock sweep` does in one."""
    with ExitStack() as stack:
        outcomes = verbs.sweep(
            _setup(databases),
            engine=engine,
            spark=lambda: stack.enter_context(spark_session()),
        )
    show_outcomes(outcomes, output)


def audit(
    topic: Topic,
    *,
    partition: Annotated[int | None, typer.Option(min=0, help="Else all.")] = None,
    first: Annotated[int | None, typer.Option("--from", min=1, help="A sequence; else 1.")] = None,
    last: Annotated[int | None, typer.Option("--to", min=1, help="Else the end.")] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="NAME=DIRECTORY, instead of the policy file's place; repeat."),
    ] = None,
    engine: Engine = AUTO,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Read a topic, hot and cold, and prove its order: no gap, no double. Exit code 1: a fault."""
    from ops.duties.audit import audit as verb

    here = Installation(database)
    given = {place.name: place for place in map(here.target, target or [])}
    known = [each for each in here.known_targets() if each.name not in given]
    setup = Setup.of_url(here.url, *given.values(), *known)
    with ExitStack() as stack:
        outcomes = verb(
            setup,
            topic,
            partition=partition,
            first=first,
            last=last,
            engine=engine,
            spark=lambda: stack.enter_context(spark_session()),
        )
    shown = ("topic", "partition", "first", "last", "state", "events", "seconds", "error")
    rows = [each.row() for each in outcomes]
    show([{name: row[name] for name in shown} for row in rows], output)
    if any(each.state != DONE for each in outcomes):
        raise typer.Exit(EXIT_NO)


def _setup(given: list[str] | None) -> Setup:
    """The databases that were named, or the one that the environment names."""
    if not given:
        return Setup({MAIN: DatabaseAddress(config.database_url())})
    found = {}
    for text in given:
        name, _, variable = text.partition("=")
        if not name or not variable.isidentifier():
            raise ConfigurationError(
                "a database is given as NAME=VARIABLE",
                hint="VARIABLE is the name of an environment variable that holds its address",
            )
        found[name] = DatabaseAddress(variable=variable)
    return Setup(found)
