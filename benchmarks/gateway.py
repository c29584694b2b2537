"""The gateway beside its database and its sequencer, all on this machine, with its load.

Publishes are single ones of 200 bytes. The calls of SQS have ten messages of 200 bytes and are
those of SDKs: signed, and each with the id by which a resend is known. ElasticMQ keeps its messages
in memory, checks no signature and knows no resend; here every message is on disk.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psutil

from benchmarks.bench import Bench
from benchmarks.gateway_load import HOST, Sqs
from benchmarks.measure import Aim, Case, Figure, Gap, Settings, figure
from benchmarks.processor import processor_seconds
from penstock import accounts, database
from penstock.accounts import MasterKeys, NewKey
from penstock.errors import PenstockError
from penstock.subscriptions import queue
from penstock.topics import names, rights
from tools.servers.elasticmq import ElasticServer

CONNECTIONS, ACCOUNTS, RATE = 64, (1, 16), 1_000
SQS_CONNECTIONS = 16
#: Single publishes of a run; seconds of the open loop; messages of a run by SQS.
PUBLISHES = {"postgres": 20_000, "mysql": 2_000, "mariadb": 2_000}
PACED_SECONDS, PACED_RATE = 20, {"postgres": RATE, "mysql": 100, "mariadb": 100}
MESSAGES = {"postgres": 20_000, "mysql": 2_000, "mariadb": 2_000}
IDLE = 1_000
PUBLISH_AIM, LATE_AIM, MEMORY_AIM = Aim(value=5_000), Aim(at_most=20), Aim(at_most=120)
SEND_AIM, CYCLE_AIM = Aim(ratio=1.0), Aim(ratio=0.8)
LOGIN, MASTER, PAYLOAD = "bench_gateway", "m" * 40, "x" * 200
READY_SECONDS = 60.0
_CREATE = {
    "postgres": f"CREATE ROLE {LOGIN} LOGIN PASSWORD 'x'",
    "mysql": f"CREATE USER {LOGIN} IDENTIFIED BY 'x'",
}
_MIB = 1 << 20
_accounts = itertools.count(1)


def cases(bench: Bench, settings: Settings) -> Iterator[Case | Figure | Gap]:
    """Publishes, calls of SQS, and callers that wait."""
    with tempfile.TemporaryDirectory(prefix="penstock-gateway-") as folder:
        with _running(bench, Path(folder)) as side:
            yield from _publishes(side, settings)
            yield from _beside_elasticmq(side, settings, Path(folder) / "elasticmq")
        with _running(bench, Path(folder)) as side:
            yield _idle(side, min(IDLE, settings.amount(IDLE)))


@dataclass
class Side:
    """A gateway that runs, and its processes by name."""

    bench: Bench
    port: int
    processes: dict[str, int]

    def account(self) -> tuple[str, NewKey]:
        """A new account with a topic and a queue."""
        own, name = self.bench.connection, f"bench{next(_accounts)}"
        accounts.create_account(own, name)
        for topic in ("orders", "mails"):
            names.create_topic(own, f"{name}/{topic}")
        queue.subscribe(own, f"{name}/mails", [f"{name}/mails"])
        return name, accounts.create_key(own, name, MasterKeys([MASTER]))

    def request(self, method: str, path: str, body: str = "") -> str:
        """The same call as a new account."""
        name, key = self.account()
        return (
            f"{method} /api/v1/accounts/{name}{path} HTTP/1.1\r\nHost: {HOST}:{self.port}\r\n"
            f"Authorization: Key {key.key_id}.{key.secret}\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        )

    def publishes(self, count: int) -> list[str]:
        """A publish by each of so many accounts."""
        return [self.request("POST", "/topics/orders/events", PAYLOAD) for _ in range(count)]


def load(**given: Any) -> Any:
    """What the load tool says at its end."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gateway_load"],
        input=json.dumps(given) + "\n", text=True, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def _publishes(side: Side, settings: Settings) -> Iterator[Figure]:
    engine = side.bench.engine
    is_postgres = engine == "postgres"
    for count in ACCOUNTS:
        requests, rows = side.publishes(count), settings.amount(PUBLISHES[engine])

        def closed(rows: int = rows, requests: Sequence[str] = requests) -> float:
            given = {"how": "closed", "port": side.port, "requests": requests, "count": rows}
            seconds: float = load(connections_=CONNECTIONS, **given)["seconds"]
            side.bench.settle()
            return rows / seconds

        closed()
        with _shares(side.processes):
            rates = [closed() for _ in range(settings.rounds)]
        yield figure(
            f"gateway_publish_{count}", median(rates), unit="events/s", rows=rows, batch=1,
            against=f"{CONNECTIONS} connections, accounts: {count}",
            aim=PUBLISH_AIM if is_postgres else None,
        )  # fmt: skip
    rate = PACED_RATE[engine]
    rows = settings.amount(rate * PACED_SECONDS)
    with _shares(side.processes):
        given = {"port": side.port, "requests": side.publishes(1), "rate": rate, "count": rows}
        late = load(how="paced", **given)["milliseconds"][rows // 10 :]
    for number in (50, 99):
        yield figure(
            f"gateway_publish_p{number}", quantiles(late, n=100, method="inclusive")[number - 1],
            unit="ms", rows=len(late), batch=1, against=f"an open loop, {rate:,} a second",
            aim=LATE_AIM if is_postgres and number > 50 else None,
        )  # fmt: skip


def _beside_elasticmq(side: Side, settings: Settings, folder: Path) -> Iterator[Case | Gap]:
    server = ElasticServer(folder, in_memory=True)
    try:
        server.start()
    except PenstockError as error:
        yield Gap("gateway_sqs_send", str(error))
        return
    try:
        rows = -(-settings.amount(MESSAGES[side.bench.engine]) // 10) * 10
        aims = (SEND_AIM, CYCLE_AIM) if side.bench.engine == "postgres" else (None, None)
        for name, cycle, aim in (("send", False, aims[0]), ("cycle", True, aims[1])):
            runs = _Runs(side, urlsplit(server.url()).port or 0, rows, cycle=cycle)
            against = "ElasticMQ in memory"
            yield Case(f"gateway_sqs_{name}", rows, 10, runs.ours, runs.peer, against, aim)
    finally:
        server.kill()


class _Runs:
    """Both sides, each run into a queue of its own."""

    def __init__(self, side: Side, port: int, rows: int, *, cycle: bool) -> None:
        self._side = side
        self._port = port
        self._given = {"how": "sqs", "count": rows, "connections": SQS_CONNECTIONS, "cycle": cycle}
        self._numbers = itertools.count(1)

    def ours(self) -> float:
        name, key = self._side.account()
        port = self._side.port
        url = f"http://{HOST}:{port}/{name}/mails"
        given = {"port": port, "url": url, "key_id": key.key_id, "secret": key.secret}
        return float(load(**self._given, **given)["seconds"])

    def peer(self) -> float:
        named = f"bench-{self._given['cycle']}-{next(self._numbers)}"
        made = Sqs(self._port, "x", "x")
        head, body = made.signed("CreateQueue", json.dumps({"QueueName": named}).encode())
        _send(self._port, head, body)
        url = f"http://{HOST}:{self._port}/123456789012/{named}"
        given = {"port": self._port, "url": url, "key_id": "x", "secret": "x"}
        return float(load(**self._given, **given)["seconds"])


def _send(port: int, head: bytes, body: bytes) -> None:
    lines = head.decode().split("\r\n")[1:-1]
    headers = dict(line.split(": ", 1) for line in lines)
    content = body.partition(b"\r\n\r\n")[2]
    asked = urllib.request.Request(f"http://{HOST}:{port}/", content, headers)
    with urllib.request.urlopen(asked, timeout=30) as reply:
        reply.read()


def _idle(side: Side, count: int) -> Figure:
    """By how much the process grows with so many polls and so many streams."""
    poll = side.request("POST", "/queues/mails/receive", '{"wait_seconds": 30}')
    stream = side.request("GET", "/topics/orders/stream")
    process = psutil.Process(side.processes["gateway"])
    load(how="closed", port=side.port, requests=side.publishes(1), connections_=8, count=100)
    before = process.memory_info().rss
    waiting = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gateway_load"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert waiting.stdin is not None and waiting.stdout is not None
    try:
        given = {"how": "held", "port": side.port, "requests": [stream, poll], "count": count}
        print(json.dumps(given), file=waiting.stdin, flush=True)
        waiting.stdout.readline()
        _until(lambda: len(process.net_connections("tcp")) > 2 * count, "all of them wait")
        time.sleep(5)  # all have looked once, at least
        grown = process.memory_info().rss - before
    finally:
        waiting.communicate()
    return figure(
        "gateway_idle", grown / _MIB, unit="MiB", rows=2 * count, batch=1, aim=MEMORY_AIM,
        against=f"{count} polls and {count} streams",
    )  # fmt: skip


@contextlib.contextmanager
def _shares(processes: dict[str, int]) -> Iterator[None]:
    """Print the share of a core that each process and its children took, and the load tool."""
    begun, mine = time.monotonic(), os.times()
    before = {name: processor_seconds(pid) for name, pid in processes.items()}
    yield
    seconds, after = time.monotonic() - begun, os.times()
    spent = {name: processor_seconds(pid) - before[name] for name, pid in processes.items()}
    spent["load tool"] = sum(after[2:4]) - sum(mine[2:4])
    shares = (f"{name} {100 * each / seconds:.0f}" for name, each in spent.items())
    print("  % of a core:", ", ".join(shares), flush=True)


@contextlib.contextmanager
def _running(bench: Bench, folder: Path) -> Iterator[Side]:
    """A gateway and a sequencer, in processes of their own."""
    url = _gateway_url(bench)
    gateway = ("-c", "from penstock.cli.main import app; app()", "gateway", "--port", "0")
    daemon = ("-m", "consumers", "--roles", "sequencer")
    with (
        _program(folder / "sequencer", bench.url, *daemon) as sequencer,
        _program(folder / "gateway", url, *gateway) as process,
    ):
        port = _until(lambda: _port(folder / "gateway"), "the gateway listens")
        processes = {
            "gateway": process, "database": bench.server_pid, "sequencer": sequencer
        }  # fmt: skip
        yield Side(bench, port, processes)


def _gateway_url(bench: Bench) -> str:
    """The database by a login for gateways, made when it is missing."""
    own, dialect = bench.connection, database.dialect_of(bench.connection)
    rights.install(own)
    with contextlib.suppress(Exception):  # it is there
        database.execute(own, _CREATE[dialect])
    with contextlib.suppress(PenstockError):
        rights.add_member(own, rights.GATEWAY, LOGIN)
    parts = urlsplit(bench.url)
    host = parts.netloc.rpartition("@")[2]
    path = parts.path if dialect == "postgres" else "/penstock"
    return urlunsplit(parts._replace(netloc=f"{LOGIN}:x@{host}", path=path))


@contextlib.contextmanager
def _program(output: Path, url: str, *arguments: str) -> Iterator[int]:
    """Run one of our programs while the block runs.  SIGTERM ends it, as an operator would."""
    environment = os.environ | {"PENSTOCK_DATABASE_URL": url, "PENSTOCK_MASTER_KEYS": MASTER}
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            if process.wait(30) != 0:
                print(output.read_text(), file=sys.stderr)


def _port(output: Path) -> int:
    lines = [json.loads(each) for each in output.read_text().splitlines() if each[:1] == "{"]
    found = [each["port"] for each in lines if each["event"] == "gateway listens"]
    return int(found[0]) if found else 0


def _until(condition: Any, what: str) -> Any:
    deadline = time.monotonic() + READY_SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {READY_SECONDS} s: {what}")
        time.sleep(0.05)
    return found
