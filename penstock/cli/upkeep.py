"""``penstock upkeep``, and its two parts that a person can run once: ``sequence`` and ``sweep``."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from penstock.cli.flags import takes
from penstock.cli.output import Format, Output, show
from penstock.database import config
from penstock.upkeep.options import options_of
from penstock.upkeep.settings import UpkeepSettings, upkeep_settings


@takes(options_of(UpkeepSettings))
def upkeep(**given: Any) -> None:
    """Sequence events, keep storage ahead and sweep until SIGTERM: each installation needs one.

    More than one beside each other does no harm: one works, the others stand by. Each option is an
    environment variable too: --http-port is PENSTOCK_UPKEEP_HTTP_PORT.
    """
    settings = upkeep_settings(given, os.environ)
    url = config.database_url()

    from penstock.consumer.running import process
    from penstock.upkeep import service

    process.log_to_stderr(settings.log_level, settings.log_format)
    raise typer.Exit(service.run(url, settings))


def sequence(
    max_events: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="At most, in one pass.")
    ] = 10_000,
    max_passes: Annotated[int, typer.Option(min=1, help="The most passes.")] = 1_000,
    output: Output = Format.table,
) -> None:
    """Give committed events their sequences, once; `penstock upkeep` does it all the time."""
    from penstock.upkeep.sequencing import sequence as verb

    show([verb(config.database_url(), max_events=max_events, max_passes=max_passes)], output)


def sweep(
    max_rows: Annotated[int, typer.Option(min=1, help="Subscriptions to look at.")] = 1_000,
    output: Output = Format.table,
) -> None:
    """Free the leases of consumers that died, and drop what was kept for long enough, once."""
    from penstock import database
    from penstock.upkeep.sweeping import sweep as verb

    with database.connect(application_name="penstock sweep") as connection:
        show([verb(connection, max_rows)], output)
