"""``penstock daemon``, which is also ``python -m consumers``."""

from __future__ import annotations

from typing import Annotated

import typer

from consumers.options import OPTIONS, effective
from consumers.settings import settings_of, shown


def _flag(name: str) -> typer.models.OptionInfo:
    option = OPTIONS[name]
    told = f"{option.about}; one of {', '.join(option.words)}" if option.words else option.about
    default = ",".join(option.default) if isinstance(option.default, tuple) else option.default
    found: typer.models.OptionInfo = typer.Option(
        metavar=option.kind.upper(), help=f"{told} [{default}]" if default else told
    )
    return found


Text = str | None
Texts = list[str] | None


def run_daemon(
    *,
    config: Annotated[Text, typer.Option(help="a YAML file of the options below")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="print what would be run with, and end")
    ] = False,
    profile: Annotated[Text, _flag("profile")] = None,
    roles: Annotated[Text, _flag("roles")] = None,
    processes: Annotated[Text, _flag("processes")] = None,
    consumer: Annotated[Texts, _flag("consumers")] = None,
    batch_consumer: Annotated[Texts, _flag("batch_consumers")] = None,
    relay: Annotated[Texts, _flag("relays")] = None,
    consumer_id: Annotated[Text, _flag("consumer_id")] = None,
    coordination: Annotated[Text, _flag("coordination")] = None,
    assign: Annotated[Text, _flag("assign")] = None,
    weight: Annotated[Text, _flag("weight")] = None,
    batch_size: Annotated[Text, _flag("batch_size")] = None,
    concurrency: Annotated[Text, _flag("concurrency")] = None,
    handler_seconds: Annotated[Text, _flag("handler_seconds")] = None,
    idle_seconds: Annotated[Text, _flag("idle_seconds")] = None,
    sequencer_events: Annotated[Text, _flag("sequencer_events")] = None,
    sweep_seconds: Annotated[Text, _flag("sweep_seconds")] = None,
    reconnects_per_second: Annotated[Text, _flag("reconnects_per_second")] = None,
    http_host: Annotated[Text, _flag("http_host")] = None,
    http_port: Annotated[Text, _flag("http_port")] = None,
    drain_seconds: Annotated[Text, _flag("drain_seconds")] = None,
    stuck_seconds: Annotated[Text, _flag("stuck_seconds")] = None,
    log_level: Annotated[Text, _flag("log_level")] = None,
    log_format: Annotated[Text, _flag("log_format")] = None,
) -> None:
    """Run consumers, the sequencer, relays and the sweep until SIGTERM."""
    flags = {
        "config": config, "profile": profile, "roles": roles, "processes": processes,
        "consumers": consumer, "batch_consumers": batch_consumer, "relays": relay,
        "consumer_id": consumer_id, "coordination": coordination, "assign": assign,
        "weight": weight, "batch_size": batch_size,
        "concurrency": concurrency, "handler_seconds": handler_seconds,
        "idle_seconds": idle_seconds, "sequencer_events": sequencer_events,
        "sweep_seconds": sweep_seconds, "reconnects_per_second": reconnects_per_second,
        "http_host": http_host, "http_port": http_port, "drain_seconds": drain_seconds,
        "stuck_seconds": stuck_seconds, "log_level": log_level, "log_format": log_format,
    }  # fmt: skip
    chosen = effective(flags)
    settings = settings_of(chosen)

    from consumers import daemon
    from penstock.consumer import process

    if check:
        daemon.require_sinks(settings)
        typer.echo(shown(settings, chosen))
        return
    process.log_to_stderr(settings.log_level, settings.log_format)
    raise typer.Exit(daemon.run(settings))
