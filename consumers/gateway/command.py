"""``penstock gateway``."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from consumers.gateway import embedded
from consumers.gateway.settings import (
    GatewaySettings,
    gateway_options,
    gateway_settings,
    gateway_url,
    shown,
)
from penstock.accounts import MasterKeys
from penstock.cli.flags import takes
from penstock.upkeep.options import options_of


@takes(options_of(GatewaySettings))
def run_gateway(
    *,
    config: Annotated[str | None, typer.Option(help="a YAML file of the options below")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="print what would be run with, and end")
    ] = False,
    **given: Any,
) -> None:
    """Serve the HTTP API until SIGTERM: publish, receive and read from any language."""
    effective = gateway_options(given | {"config": config}, os.environ)
    url, masters = embedded.access(os.environ) or (gateway_url(os.environ), None)
    settings = gateway_settings(url, effective)
    if check:
        typer.echo(shown(settings, effective))
        return

    from consumers.gateway import server
    from penstock.consumer.running import process

    process.log_to_stderr(settings.log_level, settings.log_format)
    raise typer.Exit(server.run(settings, masters or MasterKeys.from_environment()))
