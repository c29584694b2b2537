"""Calls of sinks that get no answer: another thread ends them at once."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from ops.sinks import nats_connection
from ops.sinks.address import open_sink
from ops.sinks.base import Channel, SinkUnavailable
from ops.sinks.guarded_http import Caller
from ops.sinks.nats_connection import NatsCalls, NatsConnection
from penstock.errors import SinkError
from tests.consumers.process import until
from tests.kit.proof import proves
from tests.relay.blocks import block, lease
from tests.relay.receivers import SECRET
from tools.servers.nats import NatsServer

#: Far below each time limit of a client.
SOON = 7.0


class Silent:
    """A server that accepts, and never says a word."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.accepted: list[socket.socket] = []
        self.heard = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                self.accepted.append(self._listening.accept()[0])
                if self.accepted[-1].recv(1 << 16):
                    self.heard.set()

    def close(self) -> None:
        """End it."""
        for each in [self._listening, *self.accepted]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._thread.join(20)
        for each in [self._listening, *self.accepted]:
            each.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    """One for the test."""
    with closing(Silent()) as made:
        yield made


def environ(port: int, **more: str) -> dict[str, str]:
    """What the process of a webhook sink has."""
    return {
        "PENSTOCK_WEBHOOK_ALLOW": f"http {port} 127.0.0.1/32",
        "PENSTOCK_WEBHOOK_SECRET": SECRET,
        "PENSTOCK_REDIS_PASSWORD": "x",
        "PENSTOCK_SINK_USERNAME": "u",
        **more,
    }


def ended(channel: Channel, is_inside: Callable[[], object]) -> tuple[BaseException, float]:
    """Send a block, and end that from here when it waits.  How it ended, and how long it took."""
    found: list[BaseException] = []

    def send() -> None:
        try:
            channel.send_block(block(1, 3))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    until(is_inside, "it waits for the server")
    began = time.monotonic()
    channel.abort()
    thread.join(4 * SOON)
    took = time.monotonic() - began
    channel.close()
    assert found, "the call goes on"
    return found[0], took


ADDRESSES = {
    "webhook": "webhook+http://127.0.0.1:{port}/in",
    "webhooks at once": "webhook+http://127.0.0.1:{port}/in#concurrency=4",
    "redis": "redis://127.0.0.1:{port}/p",
    "nats": "nats://127.0.0.1:{port}/s",
    "kafka": "kafka://127.0.0.1:{port}/p",
    "rabbitmq": "amqp://127.0.0.1:{port}/?queue=q",
}


@proves("partitions are sent side by side")
@pytest.mark.parametrize("kind", ADDRESSES)
def test_a_call_that_gets_no_answer_is_ended(
    kind: str, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_connection, "_CONNECT_SECONDS", 60)
    address = ADDRESSES[kind].format(port=silent.port)
    with closing(open_sink(address, environ=environ(silent.port))) as sink:
        channel = sink.open(lease())
        # NATS says nothing first; the others have their socket when they have sent something.
        error, took = ended(
            channel, lambda: silent.accepted if kind == "nats" else silent.heard.is_set()
        )
        assert isinstance(error, SinkError)
        assert took < SOON
        with pytest.raises(SinkError):  # and nothing of it is sent later
            channel.send_block(block(1, 3))


@pytest.mark.parametrize("kind", ["while it connects", "while it waits", "aborted just before"])
def test_the_end_of_a_nats_sink_ends_its_calls_and_leaves_nothing(
    kind: str, silent: Silent, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: end_tasks. It closed the event loop under them, so they waited for half a minute."""
    monkeypatch.setattr(nats_connection, "_CONNECT_SECONDS", 60)
    port = silent.port if kind != "while it waits" else nats_server.port
    connection = NatsConnection([f"nats://127.0.0.1:{port}"], {})
    calls, asked = NatsCalls(), threading.Event()
    if kind == "while it waits":
        connection.server()  # it is connected
        client: Any = connection._client
        client.request = lambda *_, **__: _for_ever(asked)
    found: list[str] = []

    def call() -> None:
        try:
            connection.api("INFO", calls=calls)
        except SinkUnavailable as error:
            found.append(str(error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    until(lambda: silent.accepted or asked.is_set(), "the call is under way")
    if kind == "aborted just before":
        calls.end()
    loop = connection._loop
    connection.close()
    thread.join(4 * SOON)
    assert found == ["the relay has ended the call to NATS"]
    assert loop is not None and loop.is_closed() and not asyncio.all_tasks(loop)
    del loop
    gc.collect()  # a task or a socket that was left is a warning, which is an error
    with pytest.raises(SinkUnavailable, match="has closed its connection"):
        connection.api("INFO")


async def _for_ever(asked: threading.Event) -> None:
    asked.set()
    await asyncio.sleep(3600)


def webhook(port: int, scheme: str = "http", **more: str) -> Channel:
    """A channel of a webhook there."""
    address = f"webhook+{scheme}://127.0.0.1:{port}/in"
    return open_sink(address, environ=environ(port, **more)).open(lease())


def test_a_handshake_that_gets_no_answer_is_ended(silent: Silent) -> None:
    error, took = ended(webhook(silent.port, "https"), silent.heard.is_set)
    assert isinstance(error, SinkUnavailable)
    assert took < SOON


def test_a_resolver_that_does_not_answer_is_waited_for_no_longer(
    silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go = threading.Event(), threading.Event()

    def resolve(*_: Any, **__: Any) -> list[Any]:
        asked.set()
        go.wait(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    error, took = ended(webhook(silent.port), asked.is_set)
    go.set()
    assert isinstance(error, SinkUnavailable)
    assert took < SOON


def test_a_connection_that_is_not_accepted_is_ended() -> None:
    with socket.socket() as listening, socket.socket() as first, socket.socket() as second:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        place = listening.getsockname()
        for each in (first, second):  # they fill its queue
            each.setblocking(False)
            each.connect_ex(place)
        channel: Any = webhook(place[1])
        error, took = ended(channel, lambda: [c for c in channel._callers._made if c._used])
        assert isinstance(error, SinkUnavailable)
        assert took < SOON


def test_a_token_endpoint_that_does_not_answer_is_waited_for_no_longer(silent: Silent) -> None:
    channel = webhook(silent.port, **token_at(silent))
    error, took = ended(channel, silent.heard.is_set)
    assert isinstance(error, SinkUnavailable)
    assert took < SOON


def token_at(silent: Silent) -> dict[str, str]:
    """A login whose tokens come from there."""
    return {
        "PENSTOCK_WEBHOOK_OAUTH_URL": f"http://127.0.0.1:{silent.port}/token",
        "PENSTOCK_WEBHOOK_OAUTH_CLIENT_ID": "c",
        "PENSTOCK_WEBHOOK_OAUTH_CLIENT_SECRET": "s",
    }


@proves("partitions are sent side by side", guard="the shutdown of the connection")
def test_without_the_shutdown_it_would_wait(
    silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: a caller only notes that it was closed."""
    monkeypatch.setattr(Caller, "close", lambda self: setattr(self, "_closed", True))
    monkeypatch.setattr("tests.relay.test_abort.SOON", 0.1)
    with pytest.raises(AssertionError, match="goes on"):
        ended(webhook(silent.port), silent.heard.is_set)


def test_waits_for_a_token_do_not_add_up(silent: Silent) -> None:
    """Each call has one deadline, and one thread at a time asks for a token."""
    address = f"webhook+http://127.0.0.1:{silent.port}/in#concurrency=8&seconds=1"
    sink = open_sink(address, environ=environ(silent.port, **token_at(silent)))
    began = time.monotonic()
    with closing(sink.open(lease())) as channel, pytest.raises(SinkUnavailable):
        channel.send_block(block(1, 14))
    assert time.monotonic() - began < SOON
    assert len(silent.accepted) < 8  # all threads would ask at once


@pytest.mark.parametrize("url", ["", "ftp://127.0.0.1/x", "127.0.0.1/token", "https://[::1"])
def test_a_token_endpoint_that_is_no_address_is_said(silent: Silent, url: str) -> None:
    given = token_at(silent) | {"PENSTOCK_WEBHOOK_OAUTH_URL": url or "https://"}
    with (
        closing(webhook(silent.port, **given)) as channel,
        pytest.raises(SinkError, match="PENSTOCK_WEBHOOK_OAUTH_URL"),
    ):
        channel.send_block(block(1, 1))
    assert silent.accepted == []
