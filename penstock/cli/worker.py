"""``penstock worker``: run the consumers of an application."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.archive_targets import ArchiveTargets, archive_targets
from penstock.cli.flags import takes
from penstock.consumer.running import process
from penstock.consumer.running.app import App
from penstock.consumer.running.supervisor import Supervisor
from penstock.database import config
from penstock.errors import ConfigurationError, UsageError, said
from penstock.upkeep.options import options_of
from penstock.upkeep.settings import WorkerSettings, worker_settings

if TYPE_CHECKING:
    from penstock.consumer.running.worker import Worker
    from penstock.upkeep.state import Calls

logger = logging.getLogger("penstock.worker")


@takes(options_of(WorkerSettings))
def worker(
    application: Annotated[str, typer.Argument(help="module:app, a penstock.App")],
    target: ArchiveTargets = None,
    **given: Any,
) -> None:
    """Run the consumers of an application until SIGTERM.

    The first SIGTERM or SIGINT drains, a second one aborts. Exit codes: 0 drained, 1 not drained in
    time or aborted, 2 refused to start, or ended by a consumer that cannot go on. Each option is an
    environment variable too: --http-port is PENSTOCK_WORKER_HTTP_PORT.
    """
    from penstock.upkeep import service
    from penstock.upkeep.processes import ChildProcess, ProcessWork
    from penstock.upkeep.state import Calls, ManyProcesses, OneProcess
    from penstock.upkeep.watch import Watch

    settings = worker_settings(given, os.environ)
    process.log_to_stderr(settings.log_level, settings.log_format)
    app, calls = _with_archive(application, target), Calls()
    given_to_each = {"application": application, "target": target, "all": settings.processes}
    work = ProcessWork.of(settings, f"{__name__}:workers_of_child", given_to_each)
    children = [ChildProcess(number, work) for number in range(1, settings.processes + 1)]
    workers = app.workers(calls.timed)
    supervisor = Supervisor(children or workers, stuck_after_seconds=settings.stuck_seconds)
    watch = Watch(app.url or config.database_url(), list(app.consumers), everything=False)
    app.prepare()
    state = OneProcess(supervisor, watch, calls)
    if children:
        state = ManyProcesses(supervisor, watch, children)
    try:
        named = sorted(app.consumers)
        code = service.serve(supervisor, state, settings, children=children, consumers=named)
    except UsageError:
        raise
    except Exception as error:  # it ended all
        logger.error("a consumer cannot go on: %s", said(error))
        raise typer.Exit(process.EXIT_REFUSED) from error
    finally:
        watch.close()
    raise typer.Exit(code)


def workers_of_child(given: dict[str, Any], number: int, calls: Calls) -> list[Worker]:
    """The workers of one of several processes."""
    app = _with_archive(given["application"], given["target"])
    return app.workers(calls.timed, process=number if given["all"] > 1 else None)


def _with_archive(application: str, target: list[str] | None) -> App:
    app = load(application)
    if app.archive is None:
        app.archive = archive_targets(target) or None
    return app


def load(address: str) -> App:
    """The application at module:name.  Modules in the present folder are found too."""
    module_name, colon, name = address.partition(":")
    if not (module_name and colon and name):
        raise ConfigurationError(f"{address!r} is not an address", hint="write module:app")
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
            f"{address} is not a penstock.App", hint="write `app = penstock.App()` in the module"
        )
    return found
