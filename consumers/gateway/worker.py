"""The gateway as a worker: uvicorn in a thread, with an event loop of its own."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import threading
import time
from typing import Any

import uvicorn
import uvloop

from consumers.gateway.app import Gateway
from consumers.gateway.protocol import BoundedProtocol
from consumers.gateway.settings import GatewaySettings
from penstock import database
from penstock.accounts import MasterKeys, check_gateway
from penstock.errors import ConfigurationError, PortTaken

logger = logging.getLogger("penstock.gateway")

#: Longer than SDKs keep an idle connection: else they send into one that is just being closed.
KEEP_ALIVE_SECONDS = 120
_BEAT_SECONDS = 0.1
_GRACE_SECONDS = 5
#: Files that are no connections of callers.
_OTHER_FILES = 256


class GatewayWorker:
    """Serves until it is told to stop."""

    name = "gateway"

    def __init__(self, settings: GatewaySettings, masters: MasterKeys) -> None:
        """Refuse what could not work; the port is taken at once."""
        self._settings = settings
        self._masters = masters
        self._turned = time.monotonic()
        self._present: Gateway | None = None
        self._before: dict[str, float] = {}
        self._socket: socket.socket | None = _listening(settings.host, settings.port)
        self.port = int(self._socket.getsockname()[1])

    def run(self, stop: threading.Event) -> None:
        """Serve until told to stop."""
        listening = self._socket or _listening(self._settings.host, self.port)
        self._socket = None
        with listening:
            with database.connect(self._settings.url, application_name="penstock gateway") as one:
                check_gateway(one)
            gateway = Gateway(self._settings, self._masters)
            self._before, self._present = self.counters(), gateway
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(self._serve(gateway, listening, stop))
            finally:
                gateway.close()

    def last_turn(self) -> float:
        """When the event loop last had time."""
        return self._turned

    def counters(self) -> dict[str, float]:
        """Requests, and the publishes that went together."""
        gateway = self._present
        if gateway is None:
            return dict(self._before)
        tally, publishes = gateway.tally, gateway.services.publishes
        now = {
            "gateway_requests": tally.requests,
            "gateway_refused": tally.refused,
            "gateway_failed": tally.failed,
            "gateway_published_events": publishes.events,
            "gateway_published_batches": publishes.batches,
        }
        return {name: value + self._before.get(name, 0.0) for name, value in now.items()}

    def gauges(self) -> dict[str, float]:
        """Requests and polls that there are now."""
        gateway = self._present
        if gateway is None:
            return {}
        return {
            "gateway_present": gateway.tally.present,
            "gateway_polls": gateway.services.polls.waiting,
            "gateway_answer_bytes": gateway.services.room.used,
            "gateway_listeners": gateway.services.groups.members,
        }

    async def _serve(
        self, gateway: Gateway, listening: socket.socket, stop: threading.Event
    ) -> None:
        server = uvicorn.Server(self._config(gateway))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        logger.info("gateway listens", extra={"host": self._settings.host, "port": self.port})
        noting = asyncio.create_task(gateway.services.uses.run())
        while not serving.done():
            self._turned = time.monotonic()
            server.should_exit = server.should_exit or stop.is_set()
            await asyncio.wait({serving}, timeout=_BEAT_SECONDS)
        await serving
        noting.cancel()
        await gateway.services.groups.left()
        await gateway.services.uses.note()

    def _config(self, gateway: Gateway) -> uvicorn.Config:
        settings = self._settings
        limits: dict[str, Any] = {
            "request_seconds": settings.request_seconds,
            "max_connections": room_for(settings.max_connections),
        }
        return uvicorn.Config(
            gateway.app,
            http=type("Protocol", (BoundedProtocol,), limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            ssl_certfile=settings.tls_certificate,
            ssl_keyfile=settings.tls_key,
        )


def room_for(connections: int) -> int:
    """So many connections, or as many as the process may open, after it has asked for more.

    A process that may open no more cannot reach its database either.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft < wanted and soft != resource.RLIM_INFINITY:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            logger.warning("the limit of open files leaves room for fewer connections")
            return max(1, soft - _OTHER_FILES)
    return connections


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(2_048)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"port {port} is taken", hint="choose another with --port, or 0 for any"
            ) from None
        raise ConfigurationError(
            f"cannot listen on {host} port {port}: {error.strerror}",
            hint="choose others with --host and --port",
        ) from None
    return made
