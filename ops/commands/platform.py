"""The verbs on the command line: ``penstock relay``, ``seal``, ``archive``, ``clean``, ...

Each calls the one function of its name in this package.  They are registered by the entry-point
group ``penstock.commands`` in pyproject.toml.
"""

from __future__ import annotations

import dataclasses
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock import database
from penstock.cli.archive_targets import ArchiveTargets, archive_targets
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, Output, say, show
from penstock.database import config
from penstock.errors import ConfigurationError, PenstockError, TargetUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ops.archive.archiving import EpochCopy
    from ops.relay.relay import Relay
    from penstock.archive.targets import Target

Topic = Annotated[str, typer.Argument(help="namespace/path/topic")]
TargetName = Annotated[
    str, typer.Option("--target", help="NAME=DIRECTORY, or a NAME of the policy file.")
]


def relay(
    subscription: str,
    sink: Annotated[
        str, typer.Argument(help="jsonl:DIRECTORY or pulsar://HOST:PORT/TENANT/NAMESPACE?admin=URL")
    ],
    *,
    forever: Annotated[bool, typer.Option("--forever", help="Go on until SIGTERM.")] = False,
    max_seconds: Annotated[float, typer.Option(min=0, help="The end, without --forever.")] = 60.0,
    target: ArchiveTargets = None,
    output: Output = Format.table,
) -> None:
    """Send a subscription to a sink: what is there, or --forever. Exit code 1: not all was sent."""
    from ops.relay.relay import Relay, relay_micro_batch
    from ops.sinks.address import configured_sink

    url, targets = config.database_url(), archive_targets(target)
    with closing(configured_sink(sink)) as opened:
        if forever:
            _run_until_signal(Relay(url, subscription, opened, archive=targets))
            return
        result = relay_micro_batch(url, subscription, opened, max_seconds, archive=targets)
    show([result], output)
    if not result.drained:
        raise typer.Exit(EXIT_NO)


def seal(
    topic: Topic,
    max_events: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="The size of a log epoch.")
    ] = 100_000,
    max_age_seconds: Annotated[
        float | None,
        typer.Option(min=0, help="Seal smaller ones at this age; 0 seals what is there."),
    ] = None,
    output: Output = Format.table,
) -> None:
    """Cut the end of a topic's partitions into log epochs."""
    from ops.seal import seal as verb

    with database.connect(application_name="penstock seal", statement_timeout_ms=0) as connection:
        sealed = verb(connection, topic, max_events=max_events, max_age_seconds=max_age_seconds)
    show(sealed, output)


def archive(topic: Topic, target: TargetName, output: Output = Format.table) -> None:
    """Bring the sealed log epochs of a topic to a target with Spark, and verify them there."""
    from ops.archive.archiving import archive_epochs

    place = target_of(target)
    with spark_session() as spark:
        _show_made(lambda: archive_epochs(spark, config.database_url(), topic, place), output)


def backfill(
    topic: Topic,
    target: TargetName,
    source: Annotated[
        list[str] | None, typer.Option(help="Where to read what the database has dropped; repeat.")
    ] = None,
    output: Output = Format.table,
) -> None:
    """Make every missing copy of a topic on a target again."""
    from ops.backfill.missing import backfill as verb

    place = target_of(target)
    sources = [target_of(each) for each in source or []]
    url = config.database_url()
    with spark_session() as spark:
        _show_made(lambda: verb(spark, url, topic, place, sources=sources), output)


def rollup(
    topic: Topic,
    target: TargetName,
    output: Output = Format.table,
) -> None:
    """Turn the many small files of closed days on a target into few large ones."""
    from ops.archive.rollup import rollup as verb

    show(verb(config.database_url(), topic, target_of(target)), output)


def clean(
    topics: Annotated[list[str], typer.Argument(help="namespace/path/topic ...")],
    yes: Annotated[bool, typer.Option("--yes", help="It removes events for good.")] = False,
    target: Annotated[
        list[str] | None,
        typer.Option(help="NAME=DIRECTORY, instead of the policy file's place; repeat."),
    ] = None,
    output: Output = Format.table,
) -> None:
    """Read back what retention lets go, remove what is whole, and say what holds the rest.

    Exit code 1: a copy is damaged, and nothing of its topic went; `penstock backfill` makes it
    again.
    """
    from ops.policies.policy import retention_in_force
    from ops.retention.clean import clean as verb, drop_slices
    from ops.retention.guard import spark_reader

    if not yes:
        raise ConfigurationError(
            "clean removes events from the database for good", hint="add --yes if you mean it"
        )
    url = config.database_url()
    given = {place.name: place for place in map(target_of, target or [])}
    with database.connect(url) as connection:
        in_force = retention_in_force(connection)
    with ExitStack() as stack:
        read = spark_reader(lambda: stack.enter_context(spark_session()), url)
        runs = []
        for topic in topics:
            names = in_force[topic].targets if topic in in_force else ()
            places = [given[name] if name in given else target_of(name) for name in names]
            runs.append(verb(url, topic, places, read))
    dropped = drop_slices(url)
    show([result for run in runs for result in run.partitions], output)
    for each in dropped:
        say(f"{each.slice}: {each.state}{f' ({each.detail})' if each.detail else ''}")
    for run in runs:
        for reason in run.read.unavailable.values():
            say(reason)
        for copy in run.read.damaged:
            say(f"{copy.target}: {copy.partition}/{copy.log_epoch} is damaged: {copy.damage}")
    if any(run.read.damaged for run in runs):
        raise typer.Exit(EXIT_NO)


target = typer.Typer(help="The places that archives are kept in.", no_args_is_help=True)


@target.callback()
def _targets() -> None:
    """With one command only, typer would leave out its name."""


@target.command("adopt")
def target_adopt(
    place: Annotated[str, typer.Argument(help="NAME=DIRECTORY, or a NAME of the policy file.")],
    yes: Annotated[
        bool, typer.Option("--yes", help="Also when it does not hold the copies recorded on it.")
    ] = False,
) -> None:
    """Mark a place as a target: one from before markers, or a new place for a lost target."""
    from penstock.archive.markers import adopt_target

    wanted = target_of(place)
    try:
        is_new = adopt_target(config.database_url(), wanted, even_without_copies=yes)
    except TargetUnavailable as error:
        raise TargetUnavailable(
            error.message, hint="mount it; or say --yes if this place takes over from a lost one"
        ) from None
    say(f"{wanted.name} is {'now' if is_new else 'already'} marked as a target of ours")


def target_of(text: str) -> Target:
    """``NAME=DIRECTORY``, or a name that the policy file knows."""
    from ops.policies import file as policy_file
    from penstock.archive.targets import Target

    name, given, uri = text.partition("=")
    if not given:
        return policy_file.load().target(name)
    if not uri:
        raise ConfigurationError(f"the target {text!r} is not NAME=DIRECTORY")
    return Target(name, uri)


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from ops.spark import local_session

    running = SparkSession.getActiveSession()
    try:
        session = local_session("penstock command")
    except PySparkException as error:
        raise PenstockError(
            f"Spark does not start: {str(error).splitlines()[0]}",
            hint="it needs Java 17 or newer: set JAVA_HOME",
        ) from error
    try:
        yield session
    except OSError as error:
        raise PenstockError(
            f"the archive target cannot be used: {error}",
            hint="name another directory, or give the right to write there",
        ) from error
    finally:
        if running is None:
            session.stop()


def _show_made(make: Callable[[], list[EpochCopy]], output: Format) -> None:
    """Show the copies; also those that were made when others could not be."""
    from ops.archive.archiving import CopiesFailed

    try:
        _show_copies(make(), output)
    except CopiesFailed as error:
        _show_copies(list(error.made), output)
        raise


def _show_copies(copies: list[EpochCopy], output: Format) -> None:
    rows = []
    for copy in copies:
        rest = dataclasses.asdict(copy)
        epoch = rest.pop("epoch")
        names = ("topic", "partition", "log_epoch", "first_sequence", "last_sequence")
        rows.append({name: epoch[name] for name in names} | rest)
    show(rows, output)


def _run_until_signal(worker: Relay) -> None:
    """Run it in a thread; the first SIGTERM or SIGINT lets it finish what it has in hand."""
    # A put into this queue may interrupt a get from it, which Event.set and Event.wait may not.
    asked: queue.SimpleQueue[None] = queue.SimpleQueue()
    stop = threading.Event()
    wanted = (signal.SIGTERM, signal.SIGINT)
    before = {each: signal.signal(each, lambda *_: asked.put(None)) for each in wanted}
    try:
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="relay") as pool:
            running = pool.submit(worker.run, stop)
            running.add_done_callback(lambda _: asked.put(None))
            asked.get()
            stop.set()
            running.result()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
