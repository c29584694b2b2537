"""``penstock worker``: run the consumers of an application."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.consumer import process
from penstock.consumer.app import App
from penstock.consumer.supervisor import Supervisor
from penstock.errors import ConfigurationError

logger = logging.getLogger("penstock.worker")

_LEVELS = ("debug", "info", "warning", "error")


def worker(
    application: Annotated[str, typer.Argument(help="module:app, a penstock.App")],
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="how long SIGTERM waits for the work in hand")
    ] = 30.0,
    log_level: Annotated[str, typer.Option(help=", ".join(_LEVELS))] = "info",
) -> None:
    """Run the consumers of an application until SIGTERM.

    The first SIGTERM or SIGINT drains, a second one aborts. Exit codes: 0 drained, 1 not drained in
    time or aborted, 2 refused to start, or ended by a consumer that cannot go on.
    """
    if log_level not in _LEVELS:
        raise ConfigurationError(
            f"unknown log level {log_level!r}", hint=f"use {', '.join(_LEVELS)}"
        )
    process.log_to_stderr(log_level)
    app = load(application)
    supervisor = Supervisor(app.workers())
    app.prepare()
    process.drain_on_signals(supervisor)
    supervisor.start()
    logger.info("started", extra={"pid": os.getpid(), "consumers": sorted(app.consumers)})
    supervisor.wait()
    logger.info("draining")
    try:
        drained = supervisor.drain(drain_seconds)
    except Exception as error:  # it ended all
        logger.error("a consumer cannot go on: %s", error)
        raise typer.Exit(process.EXIT_REFUSED) from error
    if not drained:
        logger.error("not drained within %s s", drain_seconds)
    raise typer.Exit(process.EXIT_DRAINED if drained else process.EXIT_NOT_DRAINED)


def load(address: str) -> App:
    """The application at module:name; what lies in the present folder is found too."""
    module_name, colon, name = address.partition(":")
    if not (module_name and colon and name):
        raise ConfigurationError(f"{address!r} is no address", hint="write module:app")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not module_name.startswith(error.name or "."):
            raise
        raise ConfigurationError(
            f"there is no module {module_name!r}", hint="run from the folder that holds it"
        ) from error
    found = getattr(module, name, None)
    if not isinstance(found, App):
        raise ConfigurationError(
            f"{address} is no penstock.App", hint="write `app = penstock.App()` in the module"
        )
    return found
