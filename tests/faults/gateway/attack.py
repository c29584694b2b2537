"""A gateway in a process of its own, which is killed, on a database that is killed too."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from penstock import accounts, database, log
from penstock.accounts import MasterKeys
from penstock.subscriptions import queue
from penstock.topics import names, rights
from tests.consumers.process import PENSTOCK, Daemon, until
from tests.faults.gateway.clients import AGAIN, MAILS, ORDERS, Clients
from tests.faults.proxy import Proxies
from tests.faults.servers import Crashing
from tests.faults.world import log_of

MASTER = "m" * 40
_LOGIN = "faults_gateway"
_CREATE = {
    "postgres": f"CREATE ROLE {_LOGIN} LOGIN PASSWORD 'x'",
    "mysql": f"CREATE USER {_LOGIN} IDENTIFIED BY 'x'",
}


@dataclass
class Attacked:
    """The gateway and its clients, until the block ends."""

    server: Crashing
    #: Of the same database, by the login of the gateway.
    url: str
    folder: Path
    seed: int
    proxies: Proxies
    gateway: Daemon | None = None
    starts: int = 0
    done: Counter[str] = field(default_factory=Counter)
    _port: int = 0

    def __post_init__(self) -> None:
        """Both the gateway and the database get another port with each start."""
        self.chance = random.Random(self.seed)
        self.front = self.proxies.open(lambda: ("127.0.0.1", self._port))
        self.behind = self.proxies.open(self.server.address)
        with closing(self.connect()) as own:
            accounts.create_account(own, "shop")
            key = accounts.create_key(own, "shop", MasterKeys([MASTER]))
            names.create_topic(own, f"shop/{ORDERS}")
            for each in (MAILS, AGAIN):
                names.create_topic(own, f"shop/{each}")
                queue.subscribe(own, f"shop/{each}", [f"shop/{each}"])
                queue.configure(own, f"shop/{each}", max_deliveries=1_000)
        self.clients = Clients(lambda: self.front.port, key, self.seed)

    def connect(self) -> Any:
        """A connection of the owner."""
        return database.connect(self.server.url)

    def start(self) -> None:
        """Start a gateway; it returns when it listens."""
        self.starts += 1
        self.gateway = Daemon(
            self.behind.url(self.url), self.folder / str(self.starts), ("gateway", "--port", "0"),
            {"PENSTOCK_MASTER_KEYS": MASTER}, program=PENSTOCK,
        )  # fmt: skip
        found = until(self._listens, "the gateway listens")
        self._port = int(found)

    def _listens(self) -> int:
        assert self.gateway is not None
        assert self.gateway.process.poll() is None, self.gateway.text()
        lines = [each for each in self.gateway.events() if each["event"] == "gateway listens"]
        return int(lines[0]["port"]) if lines else 0

    def kill(self) -> None:
        """SIGKILL while requests are under way."""
        self._work_on()
        assert self.gateway is not None
        until(lambda: self.clients.under_way > 0, "a request is under way")
        os.kill(self.gateway.process.pid, signal.SIGKILL)
        self.gateway.process.wait()
        self.done["kill"] += 1
        self.start()

    def crash(self) -> None:
        """SIGKILL to the database, and its start."""
        self._work_on()
        self.server.crash()
        self.done["crash"] += 1
        self.server.restart()

    def _work_on(self) -> None:
        """Until so many more requests were answered."""
        wanted = self.clients.answers + self.chance.randint(5, 60)
        until(lambda: self.clients.errors or self.clients.answers >= wanted, "answers")
        assert self.clients.errors == []

    def end(self) -> None:
        """Let all be finished."""
        self._work_on()
        self.clients.end(self._is_drained, until)
        assert self.clients.errors == []

    def _is_drained(self) -> bool:
        with closing(self.connect()) as own:
            found = queue.statistics(own, f"shop/{MAILS}")
        return not (found.ready or found.in_flight or found.delayed or self._unsequenced())

    def _unsequenced(self) -> bool:
        with closing(self.connect()) as own:
            return log.sequence(own).more

    def verdict(self) -> list[str]:
        """What is not as it was promised."""
        found: list[str] = []
        clients = self.clients
        for topic in (ORDERS, MAILS, AGAIN):
            told, there = clients.told[topic], self._in_log(topic)
            found += [f"{each} is lost" for each in told.answered - there.keys()]
            found += [f"{each}: {n} times" for each, n in there.items() if n > 1]
            for labels in told.sent:
                if len({each in there for each in labels}) > 1:
                    found.append(f"{labels} is there in part")
        mails = self._in_log(MAILS)
        found += [f"{each} was never handed out" for each in mails.keys() - clients.handed.keys()]
        found += [f"{each} was invented" for each in clients.handed.keys() - mails.keys()]
        for label, at in clients.finished.items():
            if max(clients.handed[label]) > at:
                found.append(f"{label} came again after its end was answered")
        return found

    def _in_log(self, topic: str) -> Counter[str]:
        with closing(self.connect()) as own:
            return Counter(str(row[2]) for row in log_of(own, f"shop/{topic}", 0, 1))


def gateway_url(server: Crashing) -> str:
    """The address of a server of the test's own by a new login for gateways."""
    parts = urlsplit(server.url)
    dialect = "mysql" if parts.scheme.startswith("mysql") else "postgres"
    with closing(database.connect(server.url)) as own:
        rights.install(own)
        database.execute(own, _CREATE[dialect])
        rights.add_member(own, rights.GATEWAY, _LOGIN)
    host = parts.netloc.rpartition("@")[2]
    path = "/penstock" if dialect == "mysql" else parts.path
    return urlunsplit(parts._replace(netloc=f"{_LOGIN}:x@{host}", path=path))


@contextmanager
def attacked(
    server: Crashing, url: str, folder: Path, seed: int, *, has_clients: bool = True
) -> Iterator[Attacked]:
    """A gateway with clients and a sequencer."""
    with Proxies() as proxies:
        made = Attacked(server, url, folder, seed, proxies)
        stop = threading.Event()
        sequencer = threading.Thread(target=_sequence, args=[made, stop], daemon=True)
        try:
            sequencer.start()
            made.start()
            if has_clients:
                made.clients.start()
            yield made
        finally:
            made.clients.senders_stop.set()
            made.clients.stop.set()
            stop.set()
            if made.gateway is not None:
                made.gateway.kill()
            sequencer.join(30)


def _sequence(made: Attacked, stop: threading.Event) -> None:
    """Give events their sequences, whatever happens to the database."""
    while not stop.is_set():
        with contextlib.suppress(Exception), closing(made.connect()) as own:
            while not stop.wait(0.02):
                log.sequence(own)
