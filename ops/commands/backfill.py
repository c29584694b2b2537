"""``penstock backfill``: ask for a window to be brought again, look at requests, work them off."""

from __future__ import annotations

import re
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.backfill import requests as requests
from ops.commands.groups import with_default
from ops.commands.installation import Database, Installation
from ops.commands.platform import backfill as backfill_now
from ops.commands.sessions import Engine, spark_session
from ops.duties import verbs
from ops.duties.engine import AUTO
from ops.duties.setup import Setup
from ops.duties.units import DONE, DutyOutcome
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, Output, say, show
from penstock.database import connect
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from ops.backfill.running import BackfillRun
    from ops.backfill.workers import Places
    from ops.sinks.base import Sink
    from penstock.archive.targets import Target

_AT_ONCE = "now"
_PLACE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


app = typer.Typer(
    # `penstock backfill TOPIC --target NAME` goes on making every missing copy at once.
    cls=with_default(_AT_ONCE),
    help="Bring again what is missing: copies, dropped log epochs, a window in a sink.",
    no_args_is_help=True,
)
app.command(
    _AT_ONCE,
    help="Make every copy again that a topic lacks by its policy, or on one target; the default.",
)(backfill_now)

Topic = Annotated[str, typer.Argument(help="namespace/path/topic")]
Request = Annotated[int, typer.Argument(min=1, help="The number of a request.")]


@app.command()
def request(
    kind: Annotated[str, typer.Argument(help=", ".join(requests.KINDS))],
    topic: Topic,
    *,
    target: Annotated[
        str, typer.Option(help="copy: a target's name; relay: a sink, or a relay's name.")
    ] = "",
    partition: Annotated[int | None, typer.Option(min=0, help="Else all.")] = None,
    from_sequence: Annotated[int | None, typer.Option(help="The first of the window.")] = None,
    to_sequence: Annotated[int | None, typer.Option(help="The last of the window.")] = None,
    from_time: Annotated[str | None, typer.Option(help="Sealed then or later (ISO 8601).")] = None,
    to_time: Annotated[str | None, typer.Option(help="Sealed before then (ISO 8601).")] = None,
    from_bookmark: Annotated[
        str | None, typer.Option(help="From this bookmark on; a request for each partition.")
    ] = None,
    to_bookmark: Annotated[
        str | None, typer.Option(help="Up to this bookmark; a request for each partition.")
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="copy: first read the target's recorded copies back.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    priority: Annotated[int, typer.Option(help="Higher ones come first.")] = 0,
    max_attempts: Annotated[int, typer.Option(help="Then it has failed.")] = 5,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Ask for a window of a topic to be brought again; `penstock backfill run` does it."""
    window = requests.Window(
        partition, from_sequence, to_sequence, _time(from_time), _time(to_time)
    )
    _refuse_two_ends(from_sequence, from_bookmark)
    _refuse_two_ends(to_sequence, to_bookmark)
    here = Installation(database)
    if kind == requests.RELAY:
        target = sink_address(here, target)
    elif kind == requests.COPY and target:
        target = here.target(target).name
    if audit:
        _audit(here, kind, topic, target)
    with connect(here.url) as connection:
        windows = [window]
        if from_bookmark is not None or to_bookmark is not None:
            windows = requests.windows_between(
                connection, topic, window, from_bookmark, to_bookmark
            )
        asked = [
            requests.request_backfill(
                connection,
                topic,
                kind,
                target,
                each,
                dry_run=dry_run,
                priority=priority,
                max_attempts=max_attempts,
            )
            for each in windows
        ]
    show(asked, output)


def _refuse_two_ends(sequence: int | None, bookmark: str | None) -> None:
    if sequence is not None and bookmark is not None:
        raise ConfigurationError(
            f"the bookmark {bookmark!r} and the sequence {sequence} are given for one end",
            hint="give one of them",
        )


def _audit(here: Installation, kind: str, topic: str, target: str) -> None:
    """Forget the recorded copies on a target that are gone, or not what was sealed."""
    from ops.archive.auditing import audit_copies
    from ops.archive.read_back import plain_reader
    from ops.backfill.missing import audit_files

    if kind != requests.COPY:
        raise ConfigurationError(
            f"a request of the kind {kind} has no files to look at", hint="leave out --audit"
        )
    place = here.target(target)
    gone = audit_files(here.url, topic, place)
    read = audit_copies(plain_reader(here.url), here.url, topic, place)
    for copy in (*gone, *read.forgotten):
        say(f"log epoch {copy.log_epoch} of partition {copy.partition}: {copy.reason}")


@app.command("list")
def list_(
    topic: Annotated[str | None, typer.Argument(help="Else all topics.")] = None,
    state: Annotated[
        str | None, typer.Option(help="waiting, running, done, failed or cancelled.")
    ] = None,
    max_rows: Annotated[int, typer.Option(min=1, max=10_000, help="The newest ones.")] = 20,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Show the newest requests, and how far each is."""
    if state is not None and state not in requests.STATES:
        raise ConfigurationError(
            f"no request is ever {state!r}", hint=f"there are: {', '.join(requests.STATES)}"
        )
    with connect(Installation(database).url) as connection:
        found = requests.list_backfills(connection, topic, state=state, max_rows=max_rows)
    shown = (
        "request", "kind", "topic", "target", "state", "done_units", "units", "done_events",
        "total_events", "attempts", "error",
    )  # fmt: skip
    show([{name: getattr(each, name) for name in shown} for each in found], output)


@app.command("show")
def show_(request: Request, database: Database = None, output: Output = Format.table) -> None:
    """Show a request with its ranges, and which attempt has done each."""
    with connect(Installation(database).url) as connection:
        found = requests.request_of(connection, request)
        ranges = requests.ranges(connection, request)
    if output is Format.table:
        show([found], output)
    show(ranges, output)


@app.command()
def cancel(request: Request, database: Database = None) -> None:
    """End a request that waits or runs. Exit code 1: it has ended already."""
    with connect(Installation(database).url) as connection:
        was_open = requests.cancel(connection, request)
    say(f"request {request} is {'cancelled' if was_open else 'not open'}")
    if not was_open:
        raise typer.Exit(EXIT_NO)


@app.command()
def run(
    request: Annotated[int | None, typer.Option(min=1, help="Only this one.")] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="NAME=DIRECTORY, instead of the policy file's place; repeat."),
    ] = None,
    engine: Engine = AUTO,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Work off the requests that are due. Exit code 1: not all of them are done.

    It may run several times at once; each request is done by one of them. On Spark, executors
    work off the requests of the kinds rehydrate and relay first, each one of its own.
    """
    here = Installation(database)
    with ExitStack() as stack:
        places = _places(stack, here, target or [])
        outcomes = verbs.backfill_all(
            Setup.of_url(here.url, *places.targets()), places, request=request, engine=engine
        )
    show([_row(each) for each in outcomes], output)
    if any(each.state != DONE for each in outcomes) or (request is not None and not outcomes):
        raise typer.Exit(EXIT_NO)


def _row(outcome: DutyOutcome) -> dict[str, Any]:
    """What became of a request; its state is that of the request, where it is known."""
    done: BackfillRun | None = outcome.result
    return {
        "request": int(outcome.unit.subject),
        "kind": done.kind if done else "",
        "state": done.state if done else outcome.state,
        "done_events": outcome.events,
        "error": outcome.error,
    }


@app.command()
def release(
    topic: Topic,
    older_than_seconds: Annotated[float, typer.Option(min=0, help="Brought back so long ago.")] = 0,
    max_epochs: Annotated[int, typer.Option(min=1, max=1_000, help="The most log epochs.")] = 100,
    database: Database = None,
) -> None:
    """Take rehydrated log epochs away again that no subscription has to read."""
    from ops.backfill.rehydrate import release as verb

    url = Installation(database).url
    with connect(url, statement_timeout_ms=600_000) as connection:
        released = verb(
            connection, topic, older_than_seconds=older_than_seconds, max_epochs=max_epochs
        )
    say(f"released {released} log epochs")


def _places(stack: ExitStack, here: Installation, given: list[str]) -> Places:
    """Where requests read and write: what is given, and the places of the policy file."""
    from ops.backfill.workers import Places
    from ops.sinks.address import configured_sink

    named = {place.name: place for place in map(here.target, given)}

    def all_targets() -> list[Target]:
        rest = [each for each in here.known_targets() if each.name not in named]
        return [*named.values(), *rest]

    def sink(address: str, beside: str) -> Sink:
        return configured_sink(address, beside=beside)

    return Places(
        spark=lambda: stack.enter_context(spark_session()),
        target=lambda name: named[name] if name in named else here.target(name),
        targets=all_targets,
        sink=sink,
    )


def sink_address(here: Installation, text: str) -> str:
    """The address of a sink; of a relay of the policy file, when it is a relay's name."""
    from ops.sinks.address import absolute_address
    from ops.sinks.routing import parse_routing

    if not _PLACE.match(text):
        known = here.policies
        if text not in known.relays:
            raise ConfigurationError(
                f"there is no sink and no relay {text!r}",
                hint=f"the policy file has the relays: {', '.join(known.relays) or 'none'}",
            )
        text = known.sink_address(known.relays[text])
    if parse_routing(text.partition("#")[2])[0].splits:
        # An attempt that follows a killed one could not tell where each of the places ends.
        raise ConfigurationError(
            "a range cannot be sent again where events choose their topic by to=",
            hint="leave to= out, or use {topic} alone",
        )
    return absolute_address(text)


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ConfigurationError(
            f"{text!r} is not a time with its zone", hint="write 2026-11-23T00:00:00+00:00"
        )
    return found
