"""``penstock relay``: send a subscription to a sink, and say what its sink cannot know any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated

import typer

from ops.commands.groups import with_default
from ops.commands.installation import Database, Installation
from ops.commands.outcomes import show_outcomes
from ops.commands.progress import live_line
from ops.commands.queue_relays import Order, events
from ops.commands.relay_groups import group
from ops.commands.sessions import Engine, spark_session
from ops.commands.stopping import until_signals
from ops.duties import verbs
from ops.duties.engine import AUTO, SPARK, SQL, choose
from ops.duties.running import run
from ops.duties.setup import Setup
from ops.duties.units import MAIN
from penstock.cli.archive_targets import ArchiveTargets, archive_targets
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, Output, say, show
from penstock.database import connect
from penstock.errors import ConfigurationError
from penstock.spark.options import DatabaseAddress
from penstock.subscriptions import lag

if TYPE_CHECKING:
    from ops.relay.queue_relay import QueueRelay
    from ops.relay.relay import Relay
    from ops.relay.results import RelayResult
    from ops.sinks.base import Sink

AtOnce = Annotated[int, typer.Option(min=1, help="Partitions, or events of a queue, sent at once.")]
MaxAttempts = Annotated[
    int | None,
    typer.Option(min=1, help="Then a block's events are dead letters. Default: tried for ever."),
]

Envelope = Annotated[
    str | None, typer.Option(help="The form of events: binary, structured or batch.")
]
To = Annotated[str | None, typer.Option(help="The topic there: {topic}, {type}, {header:NAME}.")]
Key = Annotated[str | None, typer.Option(help="The key there, as a template such as {type}.")]
Types = Annotated[list[str] | None, typer.Option("--type", help="Send this type only: order.*")]
Where = Annotated[list[str] | None, typer.Option(help="Send only what has it: HEADER=PATTERN.")]
Headers = Annotated[list[str] | None, typer.Option("--header", help="Add a header: NAME=TEMPLATE.")]
Tombstones = Annotated[bool, typer.Option("--tombstones", help="Send no payload as none at all.")]

Schemas = Annotated[
    bool, typer.Option("--schemas", help="What does not fit its schema is a dead letter.")
]
Rate = Annotated[float | None, typer.Option(min=0.001, help="At most so many events a second.")]
RateBytes = Annotated[int | None, typer.Option(min=1, help="At most so many bytes a second.")]
Breaker = Annotated[
    int | None, typer.Option(min=1, help="Leave the sink alone after so many failures in a row.")
]

_SEND = "send"
_ABOUT = (
    "Send a subscription to a sink: what is there, or --forever. Exit code 1: not all was sent."
)

_END = "A sequence, an LSN (LOG_EPOCH.SEQUENCE) or a time (ISO 8601); both ends belong to it."

relay = typer.Typer(
    cls=with_default(_SEND),
    help=_ABOUT,
    no_args_is_help=True,
)
relay.add_typer(group, name="group")


@relay.command(_SEND, help=_ABOUT)
def send(
    subscription: str,
    sink: Annotated[
        str | None,
        typer.Argument(
            help="jsonl:DIRECTORY, kafka://HOST:PORT/PREFIX, pulsar://HOST:PORT/TENANT/NAMESPACE?"
            "admin=URL; else the policy file's."
        ),
    ] = None,
    *,
    forever: Annotated[bool, typer.Option("--forever", help="Go on until SIGTERM.")] = False,
    max_seconds: Annotated[float, typer.Option(min=0, help="The end, without --forever.")] = 60.0,
    at_once: AtOnce = 16,
    max_attempts: MaxAttempts = None,
    order: Order = None,
    envelope: Envelope = None,
    to: To = None,
    key: Key = None,
    type_: Types = None,
    where: Where = None,
    header: Headers = None,
    tombstones: Tombstones = False,
    schemas: Schemas = False,
    rate: Rate = None,
    rate_bytes: RateBytes = None,
    breaker: Breaker = None,
    target: ArchiveTargets = None,
    engine: Engine = AUTO,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Send a subscription to a sink."""
    from ops.relay.making import relay_to
    from ops.sinks.address import absolute_address, configured_sink
    from ops.sinks.routing import with_routing

    here = Installation(database)
    if sink is None:
        sink, max_attempts = _sink_of(here, subscription, max_attempts)
    single = {"envelope": envelope, "to": to, "key": key, "order": order}
    single |= _pace(rate, rate_bytes, breaker)
    flags = {"tombstones": tombstones, "schemas": schemas}
    sink = with_routing(sink, _rules(single, flags, type_, {"where": where, "header": header}))
    targets = archive_targets(target)

    def made(opened: Sink) -> Relay | QueueRelay:
        return relay_to(
            opened,
            here.url,
            subscription,
            archive=targets,
            at_once=at_once,
            max_attempts=max_attempts,
        )

    if forever:
        _require_no_spark(engine)
        with closing(configured_sink(sink)) as opened, until_signals() as stop:
            made(opened).run(stop)
        return
    place = (MAIN, subscription)
    given, sinks = {place: max_attempts} if max_attempts else {}, {place: absolute_address(sink)}
    setup = Setup({MAIN: DatabaseAddress(here.url)}, tuple(targets), sinks, given, max_seconds)
    if _sent_on_spark(setup, subscription, engine, output):
        return
    with closing(configured_sink(sink)) as opened:
        _show_drained(_drained(here, subscription, made(opened), max_seconds), output)


def _drained(
    here: Installation, subscription: str, running: Relay | QueueRelay, max_seconds: float
) -> RelayResult:
    """Relay what is there; a person sees how it drains."""

    def waiting() -> int:
        with connect(here.url) as connection:
            return sum(each.lag_events for each in lag(connection, subscription))

    with live_line(waiting, lambda: running.stats.events):
        return running.run_for(max_seconds)


def _require_no_spark(engine: str) -> None:
    if choose(engine, 1) == SPARK:
        raise ConfigurationError(
            "Spark relays what is there, and then it ends", hint="leave out --forever"
        )


def _show_drained(result: RelayResult, output: Format) -> None:
    show([result], output)
    if not result.drained:
        raise typer.Exit(EXIT_NO)


def _pace(rate: float | None, rate_bytes: int | None, breaker: int | None) -> dict[str, str]:
    given = {"rate": rate, "rate_bytes": rate_bytes, "breaker": breaker}
    return {name: f"{value:f}".rstrip("0").rstrip(".") for name, value in given.items() if value}


def _rules(
    single: Mapping[str, str | None],
    flags: Mapping[str, bool],
    types: Sequence[str] | None,
    named: Mapping[str, Sequence[str] | None],
) -> list[tuple[str, str]]:
    """The options of the command, as the sink's address has them."""
    found = [(name, value) for name, value in single.items() if value]
    found += [(name, "true") for name, is_set in flags.items() if is_set]
    found += [("type", each) for each in types or ()]
    for kind, pairs in named.items():
        for pair in pairs or ():
            name, equals, text = pair.partition("=")
            if not (name and equals):
                raise ConfigurationError(f"--{kind} {pair} is not NAME=TEXT")
            found.append((f"{kind}.{name}", text))
    return found


def _sink_of(
    here: Installation, subscription: str, max_attempts: int | None
) -> tuple[str, int | None]:
    """Where the policy file sends a subscription, and how often it tries a block, if it says so.

    What the command says of that comes first.
    """
    policies = here.known_policies()
    relays = policies.relays.values()
    for each in relays:
        if each.subscription == subscription:
            return policies.sink_address(each), max_attempts or each.max_attempts or None
    raise ConfigurationError(
        f"{policies.file} has no relay of the subscription {subscription!r}",
        hint="name a sink, or one of: "
        f"{', '.join(sorted(each.subscription for each in relays)) or 'none'}",
    )


def _sent_on_spark(setup: Setup, subscription: str, engine: str, output: Format) -> bool:
    """Show what Spark has relayed.  False when it is not worth its start, or not wanted."""
    if engine == SQL:
        return False
    units, events = verbs.relay_units(setup, [(MAIN, subscription)])
    if choose(engine, len(units), events) == SQL:
        return False
    with ExitStack() as stack:
        done = run(units, setup, engine=SPARK, spark=lambda: stack.enter_context(spark_session()))
    show_outcomes(done, output)
    return True


relay.command()(events)


@relay.command()
def status(subscription: str, *, database: Database = None, output: Output = Format.table) -> None:
    """Show how far a relay is behind in each partition, how fast it is, and why it stands."""
    from ops.lateness import queue_names
    from ops.relay.groups import group_status
    from ops.relay.queue_status import queue_relay_status
    from ops.relay.status import relay_status
    from penstock.subscriptions.relay_groups import relay_groups

    with connect(Installation(database).url) as connection:
        own = relay_groups(connection).get(subscription)
        if own is not None:
            show(group_status(connection, own), output)
        elif subscription in queue_names(connection):
            show([queue_relay_status(connection, subscription)], output)
        else:
            show(relay_status(connection, subscription), output)


@relay.command()
def replay(
    topic: Annotated[str, typer.Argument(help="namespace/path/topic")],
    sink: Annotated[str, typer.Argument(help="A sink, or a relay of the policy file.")],
    *,
    partition: Annotated[int | None, typer.Option(min=0, help="Else all.")] = None,
    begin: Annotated[str, typer.Option("--from", help=_END)] = "",
    end: Annotated[str, typer.Option("--to", help=_END)] = "",
    rate: Rate = None,
    rate_bytes: RateBytes = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the events.")] = False,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Send a range of a topic once more, to places of its own beside those of the relay."""
    from ops.backfill.ranges import windows_of
    from ops.backfill.requests import RELAY, request_backfill
    from ops.commands.backfill import run, sink_address
    from ops.sinks.routing import with_routing

    here = Installation(database)
    address = with_routing(sink_address(here, sink), _pace(rate, rate_bytes, None).items())
    with connect(here.url) as connection:
        asked = [
            request_backfill(connection, topic, RELAY, address, each, dry_run=dry_run)
            for each in windows_of(
                connection,
                topic,
                partition=partition,
                begin=begin,
                end=end,
                targets=here.known_targets(),
            )
        ]
    if dry_run:
        show(asked, output)
        return
    for each in asked:
        run(each.request, engine=SQL, database=database, output=output)


@relay.command()
def resolve(
    subscription: str,
    topic: Annotated[str, typer.Argument(help="namespace/path/topic")],
    partition: Annotated[int, typer.Argument(min=0)],
    *,
    sent: Annotated[
        bool, typer.Option("--sent/--not-sent", help="Whether the sink has got the block.")
    ],
    database: Database = None,
) -> None:
    """Say whether an open block was sent, when its sink has lost what it knew of it."""
    from ops.relay.block import resolve_block

    with connect(Installation(database).url) as connection:
        position = resolve_block(connection, subscription, topic, partition, was_sent=sent)
    say(f"{topic} partition {partition}: {subscription} is at position {position}")
