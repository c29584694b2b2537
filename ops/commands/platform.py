"""The verbs on the command line: ``penstock seal``, ``archive``, ``clean``, ...

Each calls the one function of its name in this package.  They are registered by the entry-point
group ``penstock.commands`` in pyproject.toml.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from ops.commands.installation import Database, Installation
from ops.commands.sessions import Engine, once, spark_session
from ops.commands.targets import target as target
from ops.duties import verbs
from ops.duties.engine import AUTO
from ops.duties.setup import Setup
from ops.duties.units import FAILED, LOST, DutyOutcome
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, Output, say, show
from penstock.database import connect
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from ops.archive.archiving import EpochCopy
    from ops.archive.placement import Placement
    from ops.archive.placing import Placed
    from ops.policies.file import Policies
    from penstock.records import LogEpoch

Topic = Annotated[str, typer.Argument(help="namespace/path/topic")]
OnlyTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="NAME=DIRECTORY, or a NAME of the policy file: this one only, whatever the policy is.",
    ),
]


def seal(
    topics: Annotated[
        list[str] | None,
        typer.Argument(help="namespace/path/topic ...; else all that have a seal policy."),
    ] = None,
    max_events: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, help="The size of a log epoch, else the policy's."),
    ] = None,
    max_age_seconds: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seal smaller ones at this age, else the policy's; 0 seals what is there."
        ),
    ] = None,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Cut the end of topics' partitions into log epochs, as the policy file says."""
    from ops.seal import seal as verb
    from penstock.topics import names

    here = Installation(database)
    policies = here.known_policies()
    chosen = topics or [each.topic for each in policies.topics.values() if each.seal]
    if not chosen:
        raise ConfigurationError(
            f"no topic has a seal policy in {policies.file}",
            hint="name the topics, or write topics.TOPIC.seal into the policy file",
        )
    sealed: list[LogEpoch] = []
    with connect(here.url, application_name="penstock seal", statement_timeout_ms=0) as connection:
        existing = set() if topics else {each.address for each in names.list_topics(connection)}
        for topic in chosen:
            if not topics and topic not in existing:
                say(f"{topic} does not exist yet")
                continue
            size, age = _seal_limits(policies, topic, max_events, max_age_seconds)
            sealed += verb(connection, topic, max_events=size, max_age_seconds=age)
    show(sealed, output)


def _seal_limits(
    policies: Policies, topic: str, max_events: int | None, max_age_seconds: float | None
) -> tuple[int, float | None]:
    """Size and age of a topic's log epochs: an option, else the policy, else the preset."""
    from ops.policies.settings import SealPolicy

    policy = policies.of_topic(topic).seal or SealPolicy()
    if policies.of_topic(topic).seal is None and max_age_seconds is None:
        say(
            f"{policies.file} has no seal policy for {topic}: less than "
            f"{max_events or policy.max_events} events are not sealed, however old they are"
        )
    age = policy.max_age_seconds if max_age_seconds is None else max_age_seconds
    return max_events or policy.max_events, age


def archive(
    topic: Topic,
    target: OnlyTarget = None,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Bring the sealed log epochs of a topic to its targets with Spark, and verify them there."""
    from ops.archive.archiving import archive_epochs
    from ops.archive.placing import place_copies

    here = Installation(database)
    with ExitStack() as stack:
        spark = once(stack)
        if target is None:
            placed = (spark, here.url, topic, placement_of(here, topic), here.target)
            _show_placed(lambda: place_copies(*placed), output)
            return
        place = here.target(target)
        _show_made(lambda: archive_epochs(spark(), here.url, topic, place), output)


def backfill(
    topic: Topic,
    target: OnlyTarget = None,
    source: Annotated[
        list[str] | None,
        typer.Option(help="With --target: where to read what the database has dropped; repeat."),
    ] = None,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Make every copy again that a topic lacks by its policy, or on one target."""
    from ops.backfill.missing import backfill as verb, catch_up

    here = Installation(database)
    if target is None and source:
        raise ConfigurationError("--source is given without --target", hint="name the --target")
    with ExitStack() as stack:
        spark = once(stack)
        if target is None:
            lacking = (spark, here.url, topic, placement_of(here, topic), here.target)
            made = _show_placed(lambda: catch_up(*lacking), output)
        else:
            place = here.target(target)
            sources = [here.target(each) for each in source or []]
            made = _show_made(
                lambda: verb(spark(), here.url, topic, place, sources=sources), output
            )
    if not made:
        say(
            "no copy is recorded as missing, and every file has its size. Bytes that have changed "
            "are found by reading: penstock target audit"
        )


def placement_of(here: Installation, topic: str) -> Placement:
    """Where the policy file wants the copies of a topic."""
    found = here.policies.of_topic(topic).placement
    if found is None:
        raise ConfigurationError(
            f"the policy file names no archive targets for {topic}",
            hint=f"write topics.{topic}.archive, or name a --target",
        )
    return found


def rollup(
    topic: Topic,
    target: OnlyTarget = None,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Turn the many small files of closed days on a topic's targets into few large ones."""
    from ops.archive.rollup import rollup as verb

    here = Installation(database)
    targets = placement_of(here, topic).targets if target is None else [target]
    show([made for each in targets for made in verb(here.url, topic, here.target(each))], output)


def clean(
    topics: Annotated[list[str], typer.Argument(help="namespace/path/topic ...")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="It removes events for good.")] = False,
    target: Annotated[
        list[str] | None,
        typer.Option(help="NAME=DIRECTORY, instead of the policy file's place; repeat."),
    ] = None,
    engine: Engine = AUTO,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Read back what retention lets go, remove what is whole, and say what holds the rest.

    Exit code 1: a copy is damaged, and nothing of its topic went; `penstock backfill` makes it
    again. Or something failed.
    """
    from ops.policies.policy import retention_in_force

    if not yes:
        raise ConfigurationError(
            "clean removes events from the database for good", hint="add --yes if you mean it"
        )
    here = Installation(database)
    url = here.url
    given = {place.name: place for place in map(here.target, target or [])}
    with connect(url) as connection:
        in_force = retention_in_force(connection)
    names = dict.fromkeys(
        name for topic in topics if topic in in_force for name in in_force[topic].targets
    )
    places = [given[name] if name in given else here.target(name) for name in names]
    with ExitStack() as stack:
        outcomes = verbs.clean(
            Setup.of_url(url, *places),
            [verbs.DutyPlace(topic) for topic in topics],
            engine=engine,
            spark=lambda: stack.enter_context(spark_session()),
        )
    _show_cleaned(outcomes, output)


def _show_cleaned(outcomes: list[DutyOutcome], output: Format) -> None:
    by_duty: dict[str, list[DutyOutcome]] = {}
    for each in outcomes:
        by_duty.setdefault(each.unit.duty, []).append(each)
    show([row for each in by_duty.get("clean", []) for row in each.result or []], output)
    for each in by_duty.get("storage", []):
        for dropped in each.result or []:
            detail = f" ({dropped.detail})" if dropped.detail else ""
            say(f"{dropped.slice}: {dropped.state}{detail}")
    for text in dict.fromkeys(each.error for each in outcomes if each.error):
        say(text)
    if any(each.state in {FAILED, LOST} for each in outcomes):
        raise typer.Exit(EXIT_NO)


def _show_placed(place: Callable[[], Placed], output: Format) -> int:
    """Show the copies that were made, and say what is left to a later run. Returns how many."""
    from ops.archive.placing import QuorumMissed

    try:
        placed = place()
    except QuorumMissed as error:
        if error.placed.made:
            _show_copies(list(error.placed.made), output)
        raise
    _show_copies(list(placed.made), output)
    for why in placed.away.values():
        say(why)
    if placed.behind:
        say(f"{len(placed.behind)} log epochs have their quorum, and lack a copy: run backfill")
    return len(placed.made)


def _show_made(make: Callable[[], list[EpochCopy]], output: Format) -> int:
    """Show the copies; also those that were made when others could not be. Returns how many."""
    from ops.archive.archiving import CopiesFailed

    try:
        made = make()
    except CopiesFailed as error:
        if error.made:
            _show_copies(list(error.made), output)
        raise
    _show_copies(made, output)
    return len(made)


def _show_copies(copies: list[EpochCopy], output: Format) -> None:
    rows = []
    for copy in copies:
        rest = dataclasses.asdict(copy)
        epoch = rest.pop("epoch")
        names = ("topic", "partition", "log_epoch", "first_sequence", "last_sequence")
        rows.append({name: epoch[name] for name in names} | rest)
    show(rows, output)
