"""The gateway as a program: its worker under the supervisor, and the pages of every program."""

from __future__ import annotations

import os

from consumers.gateway.pages.settings import page_settings
from consumers.gateway.pages.site import Site
from consumers.gateway.settings import GatewaySettings
from consumers.gateway.worker import GatewayWorker
from penstock import database
from penstock.accounts import MasterKeys
from penstock.consumer.running.supervisor import Supervisor
from penstock.database import migrate
from penstock.upkeep import service
from penstock.upkeep.state import Calls, OneProcess
from penstock.upkeep.watch import Watch


def run(settings: GatewaySettings, masters: MasterKeys) -> int:
    """Serve until a signal says stop.  Returns the exit code."""
    with database.connect(settings.url) as connection:
        migrate.require_usable(connection)
    site = Site(page_settings(os.environ, settings.page), masters)
    worker = GatewayWorker(settings, masters)
    supervisor = Supervisor([worker], stuck_after_seconds=settings.stuck_seconds)
    watch = Watch(settings.url, [], everything=False, measures=False)
    try:
        return service.serve(
            supervisor,
            OneProcess(supervisor, watch, Calls()),
            settings,
            pace=settings.reconnects_per_second,
            port=worker.port,
            pages=site,
        )
    finally:
        site.close()
        watch.close()
