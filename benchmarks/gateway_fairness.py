"""What a noisy tenant of the gateway costs a quiet one: row `gateway_fairness`.

    python -m benchmarks.gateway_fairness [--rounds 5] [--seconds 10] [--share 0.5]

The gateway, its database and its sequencer share the machine with the load.  First the noisy tenant
publishes on 64 connections as fast as it can: that is the capacity.  Then rounds alternate: the
quiet tenant alone, and beside the noisy one at a share of the capacity.  The quiet one publishes
and receives at fixed times (open loop: a late answer delays no other call), and each time counts
from the moment when the call was due.  It prints the p99 of each round, and the median of the
ratios of pairs.  The aim is at most 1.5 at half of the capacity.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psycopg
import uvloop

from benchmarks.processor import processor_seconds
from penstock import accounts
from penstock.accounts import MasterKeys
from penstock.database.migrate import migrate
from penstock.subscriptions import queue
from penstock.topics import names
from resources.embedded import EmbeddedPostgres

CONNECTIONS = 64
#: Calls a second of the quiet tenant, of each kind.
QUIET_RATE = 40
AIM = 1.5
_MASTER = "m" * 40
_BODY = b"x" * 200
_NOISY = "--noisy"
_PENSTOCK = ("-c", "from penstock.cli.main import app; app()")


@dataclass(frozen=True, slots=True)
class Tenant:
    """How an account calls its queue."""

    port: int
    account: str
    key: str

    def call(self, method: str, path: str, body: bytes = b"") -> bytes:
        """A whole request."""
        head = (
            f"{method} /api/v1/accounts/{self.account}/queues/mails{path} HTTP/1.1\r\n"
            f"Host: 127.0.0.1\r\nAuthorization: Key {self.key}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    @property
    def publish(self) -> bytes:
        """A call that publishes."""
        return self.call("POST", "/messages", _BODY)

    @property
    def receive(self) -> bytes:
        """A call that finds nothing, or one message that it leaves."""
        return self.call("POST", "/receive", b'{"visibility_seconds": 1}')


class Connection:
    """One connection, one call at a time."""

    def __init__(self, tenant: Tenant) -> None:
        self._port = tenant.port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, request: bytes) -> int:
        """The status of the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        _, _, length = head.partition(b"content-length:")
        if length:
            await reader.readexactly(int(length.partition(b"\r\n")[0]))
        return int(head.split(b" ", 2)[1])


async def closed_loop(tenant: Tenant, seconds: float) -> float:
    """Publishes a second on all connections, each as soon as it has its answer."""
    until = time.monotonic() + seconds
    done = 0

    async def run() -> None:
        nonlocal done
        connection = Connection(tenant)
        while time.monotonic() < until:
            status = await connection.send(tenant.publish)
            done += status == 201

    await asyncio.gather(*(run() for _ in range(CONNECTIONS)))
    return done / seconds


async def paced(tenant: Tenant, rate: float) -> None:
    """Publish at a rate, spread over all connections, until somebody ends it."""
    pause = CONNECTIONS / rate

    async def run(number: int) -> None:
        connection = Connection(tenant)
        due = time.monotonic() + pause * number / CONNECTIONS
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await connection.send(tenant.publish)
            due += pause

    await asyncio.gather(*(run(number) for number in range(CONNECTIONS)))


@dataclass(slots=True)
class Taken:
    """How long calls took, in milliseconds."""

    publish: list[float] = field(default_factory=list)
    receive: list[float] = field(default_factory=list)


async def open_loop(tenant: Tenant, seconds: float) -> Taken:
    """The quiet tenant: each call at its time, on any free connection."""
    taken = Taken()
    free: list[Connection] = []

    async def one(request: bytes, times: list[float], due: float) -> None:
        connection = free.pop() if free else Connection(tenant)
        await connection.send(request)
        times.append(1_000 * (time.monotonic() - due))
        free.append(connection)

    begun, calls = time.monotonic(), []
    for number in range(int(seconds * QUIET_RATE)):
        for request, times, shift in (
            (tenant.publish, taken.publish, 0.0),
            (tenant.receive, taken.receive, 0.5),
        ):
            due = begun + (number + shift) / QUIET_RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            calls.append(asyncio.create_task(one(request, times, due)))
    await asyncio.gather(*calls)
    return taken


def p99(times: list[float]) -> float:
    """The 99th percentile."""
    return sorted(times)[int(0.99 * len(times))]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def _program(*arguments: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, *arguments], env=os.environ | variables, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _tenant(owner: psycopg.Connection, port: int, account: str) -> Tenant:
    accounts.create_account(owner, account)
    key = accounts.create_key(owner, account, MasterKeys([_MASTER]))
    names.create_topic(owner, f"{account}/mails")
    queue.subscribe(owner, f"{account}/mails", [f"{account}/mails"])
    return Tenant(port, account, f"{key.key_id}.{key.secret}")


def _wait_until_it_listens(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("the gateway does not listen")


def _measure(noisy: Tenant, quiet: Tenant, gateway: int, options: argparse.Namespace) -> None:
    uvloop.run(closed_loop(noisy, 2))  # connections, plans
    before = processor_seconds(gateway)
    capacity = uvloop.run(closed_loop(noisy, options.seconds))
    used = (processor_seconds(gateway) - before) / options.seconds
    rate = options.share * capacity
    print(f"capacity {capacity:,.0f} publishes/s, the gateway used {used:.0%} of a core")
    ratios: dict[str, list[float]] = {"publish": [], "receive": []}
    for number in range(options.rounds):
        alone = uvloop.run(open_loop(quiet, options.seconds))
        told = [str(noisy.port), noisy.account, noisy.key, str(rate)]
        with _program("-m", "benchmarks.gateway_fairness", _NOISY, *told):
            time.sleep(1.5)  # it starts
            beside = uvloop.run(open_loop(quiet, options.seconds))
        time.sleep(1.0)
        for kind, found in ratios.items():
            before_it, with_it = p99(getattr(alone, kind)), p99(getattr(beside, kind))
            found.append(with_it / before_it)
            middle = median(getattr(alone, kind)), median(getattr(beside, kind))
            print(
                f"round {number + 1}: {kind:<8} p99 alone {before_it:6.1f} ms, beside"
                f" {rate:,.0f}/s {with_it:6.1f} ms; median {middle[0]:.1f} and {middle[1]:.1f} ms"
            )
    for kind, found in ratios.items():
        middle_ratio = median(found)
        said = "met" if max(found) <= AIM else "missed" if min(found) > AIM else "inconclusive"
        print(f"gateway_fairness {kind}: {middle_ratio:.2f} x p99, aim <= {AIM}: {said}")


def main() -> None:
    """Print a line for each round, and the row."""
    if sys.argv[1:2] == [_NOISY]:
        told, account, key, rate = sys.argv[2:]
        uvloop.run(paced(Tenant(int(told), account, key), float(rate)))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--share", type=float, default=0.5)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = EmbeddedPostgres(Path(folder) / "postgres")
        server.start()
        stack.callback(server.stop)
        migrate(server.url())
        port = _free_port()
        gateway = stack.enter_context(
            _program(
                *_PENSTOCK, "gateway", "--port", str(port), "--http-port", "0",
                "--request-log", "none",
                PENSTOCK_GATEWAY_DATABASE_URL=server.gateway_url(), PENSTOCK_MASTER_KEYS=_MASTER,
            )
        )  # fmt: skip
        stack.enter_context(
            _program(
                *_PENSTOCK, "daemon", "--roles", "sequencer,sweep", "--http-port",
                "0", PENSTOCK_DATABASE_URL=server.url(),
            )
        )  # fmt: skip
        owner = stack.enter_context(psycopg.connect(server.url(), autocommit=True))
        noisy, quiet = (_tenant(owner, port, each) for each in ("noisy", "quiet"))
        _wait_until_it_listens(port)
        _measure(noisy, quiet, gateway.pid, options)


if __name__ == "__main__":
    main()
