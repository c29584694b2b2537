"""``penstock relay group``: relays with several sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ops.commands.installation import Database, Installation
from ops.commands.stopping import until_signals
from penstock.cli.archive_targets import ArchiveTargets, archive_targets
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, Output, say, show
from penstock.database import connect
from penstock.errors import ConfigurationError
from penstock.subscriptions import relay_groups, stream

if TYPE_CHECKING:
    from ops.relay.relay import Relay
    from ops.sinks.base import Sink

group = typer.Typer(help="Relays with several sinks.", no_args_is_help=True)

Relay_ = Annotated[str, typer.Argument(help="The relay's name.", metavar="RELAY")]
Sinks = Annotated[
    list[str] | None, typer.Option("--sink", help="The name of a sink; several times.")
]
Addresses = Annotated[
    list[str] | None,
    typer.Option("--sink", help="NAME=ADDRESS, several times; else the policy file's."),
]


@group.command("set")
def set_group(
    relay: Relay_,
    *,
    sink: Sinks = None,
    ack_quorum: Annotated[int, typer.Option(help="How many sinks have to pass an event.")],
    topic: Annotated[
        list[str] | None, typer.Option(help="What a new relay sends; several times.")
    ] = None,
    retain_for: Annotated[str, typer.Option(help="Retention waits for: all or quorum.")] = "all",
    start: Annotated[str, typer.Option(help="Where new sinks begin.")] = "earliest",
    database: Database = None,
) -> None:
    """Create a relay, add sinks to it, or change its quorum.  Sinks that are not named stay."""
    with connect(Installation(database).url) as connection:
        added = relay_groups.set_relay_group(
            connection,
            relay,
            sink or [],
            ack_quorum,
            topics=topic,
            retain_for=retain_for,
            start=start,
        )
    say(f"{relay}: {added} new sinks, ack_quorum {ack_quorum}, retain_for {retain_for}")


@group.command("list")
def list_groups(*, database: Database = None, output: Output = Format.table) -> None:
    """List the relays with several sinks."""
    with connect(Installation(database).url) as connection:
        show(list(relay_groups.relay_groups(connection).values()), output)


@group.command("status")
def status(relay: Relay_, *, database: Database = None, output: Output = Format.table) -> None:
    """Show where a relay and each of its sinks stand."""
    from ops.relay.groups import group_status

    with connect(Installation(database).url) as connection:
        show(group_status(connection, _known(connection, relay)), output)


@group.command("remove")
def remove(
    relay: Relay_,
    sink: Annotated[str, typer.Argument(help="The sink's name.")],
    *,
    database: Database = None,
) -> None:
    """Remove a sink, and its place in the log.  Refused if the others cannot reach the quorum."""
    with connect(Installation(database).url) as connection:
        own = _known(connection, relay)
        if sink not in own.sinks:
            raise ConfigurationError(
                f"the relay {relay} has no sink {sink!r}", hint=f"it has: {', '.join(own.sinks)}"
            )
        stream.unsubscribe(connection, own.sinks[sink])
    say(f"{relay}: {sink} is removed")


@group.command("delete")
def delete(relay: Relay_, *, database: Database = None) -> None:
    """Make the sinks ordinary relays again, which stay where they stand."""
    with connect(Installation(database).url) as connection:
        relay_groups.delete_relay_group(connection, relay)
    say(f"{relay} is deleted; its sinks stay as subscriptions")


@group.command("run")
def run(
    relay: Relay_,
    *,
    sink: Addresses = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Sinks served at a time. Default: all of them.")
    ] = None,
    forever: Annotated[bool, typer.Option("--forever", help="Go on until SIGTERM.")] = False,
    max_seconds: Annotated[float, typer.Option(min=0, help="The end, without --forever.")] = 60.0,
    target: ArchiveTargets = None,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Send to all sinks of a relay, the fastest first. Exit code 1: not all was sent."""
    from ops.relay.groups import serve

    here = Installation(database)
    with connect(here.url) as connection:
        own = _known(connection, relay)
    opened, attempts = _sinks(here, own, sink or [])
    targets = archive_targets(target)

    def made(name: str, at: Sink) -> Relay:
        from ops.relay.relay import Relay

        return Relay(
            here.url, own.sinks[name], at, archive=targets, max_attempts=attempts.get(name)
        )

    with until_signals() as stop:
        done = serve(
            opened,
            made,
            threads=threads or len(opened),
            max_seconds=None if forever else max_seconds,
            stop=stop,
        )
    show(done, output)
    if not forever and not all(each.drained for each in done):
        raise typer.Exit(EXIT_NO)


def _known(connection: object, relay: str) -> relay_groups.RelayGroup:
    found = relay_groups.relay_groups(connection)
    if relay not in found:
        raise ConfigurationError(
            f"there is no relay {relay!r} with several sinks",
            hint="create it: penstock relay group set",
        )
    return found[relay]


def _sinks(
    here: Installation, own: relay_groups.RelayGroup, given: list[str]
) -> tuple[Mapping[str, Callable[[], Sink]], Mapping[str, int | None]]:
    """What opens each sink, and how often it tries a block; every sink has to have an address."""
    from ops.sinks.address import configured_sink

    addresses = dict(each.partition("=")[::2] for each in given)
    attempts: dict[str, int | None] = {}
    if not given:
        policies = here.known_policies()
        for sink, subscription in own.sinks.items():
            said = policies.relays.get(subscription)
            if said is not None:
                addresses[sink] = policies.sink_address(said)
                attempts[sink] = said.max_attempts or None
    if wrong := set(addresses) ^ set(own.sinks):
        raise ConfigurationError(
            f"the relay {own.relay} has the sinks {', '.join(sorted(own.sinks))}, and the "
            f"addresses given differ in: {', '.join(sorted(wrong))}",
            hint="give each sink its address, by --sink NAME=ADDRESS or in the policy file",
        )
    return {name: partial(configured_sink, text) for name, text in addresses.items()}, attempts
