"""``penstock daemon``, which is also ``python -m consumers``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from consumers.options import OPTIONS, effective
from consumers.settings import settings_of, shown
from penstock.cli.flags import takes


@takes(OPTIONS)
def run_daemon(
    *,
    config: Annotated[str | None, typer.Option(help="a YAML file of the options below")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="print what would be run with, and end")
    ] = False,
    **given: Any,
) -> None:
    """Run consumers, queues, the sequencer, relays and the sweep until SIGTERM."""
    chosen = effective(given | {"config": config})
    settings = settings_of(chosen)

    from consumers import daemon
    from penstock.consumer.running import process

    if check:
        daemon.require_sinks(settings)
        typer.echo(shown(settings, chosen))
        return
    process.log_to_stderr(settings.log_level, settings.log_format)
    raise typer.Exit(daemon.run(settings))
