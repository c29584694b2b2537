"""A gateway over the test's database, and a client that shows its key in any of the ways."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from consumers.gateway.credentials import signed_requests, signed_urls
from consumers.gateway.credentials.shown import ShownRequest
from consumers.gateway.settings import GatewaySettings
from consumers.gateway.worker import GatewayWorker
from penstock import accounts, database, log
from penstock.accounts import MasterKeys, NewKey
from penstock.errors import LogBehind
from tests.contract.databases import ContractDatabase
from tests.contract.tenants import Tenants, tenants_of
from tests.kit.log import wait_until

MASTERS = MasterKeys(["m" * 40])
_nonces = itertools.count()


@dataclass(frozen=True, slots=True)
class Reply:
    """What the gateway has answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Client:
    """Calls the gateway as an account, with a key or without any."""

    port: int
    account: str
    key: NewKey | None = None
    #: Added to every query: a signed address.
    signed: str = ""

    def __call__(
        self,
        method: str,
        path: str,
        body: bytes | object = b"",
        *,
        headers: Mapping[str, str] | None = None,
        account: str | None = None,
    ) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        whole = f"/api/v1/accounts/{quote(account or self.account)}{path}"
        if self.signed:
            whole += ("&" if "?" in whole else "?") + self.signed
        told = dict(headers or {})
        if self.key is not None:
            told.setdefault("Authorization", f"Key {self.key.key_id}.{self.key.secret}")
        return send(self.port, method, whole, data, told)

    def sign(self, method: str, path: str, body: bytes = b"") -> dict[str, str]:
        """The headers of a signed request; each has another nonce."""
        assert self.key is not None
        whole, _, query = f"/api/v1/accounts/{self.account}{path}".partition("?")
        shown = ShownRequest(method, whole, query, {}, body)
        return signed_requests.sign(
            shown,
            f"127.0.0.1:{self.port}",
            self.key.key_id,
            self.key.secret,
            created=int(time.time()),
            nonce=f"nonce-{next(_nonces):020}",
        )

    def by_address(self, levels: str, queue: str | None = None, **more: Any) -> Client:
        """A client that has a signed address only."""
        assert self.key is not None
        times = {"start": datetime.now(UTC) - timedelta(seconds=5)}
        times["end"] = times["start"] + timedelta(hours=1)
        signed = signed_urls.sign(
            self.account,
            self.key.key_id,
            self.key.secret,
            levels=levels,
            queue=queue,
            **(times | more),
        )
        return replace(self, key=None, signed=signed)


def send(
    port: int, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Reply:
    """One request on a connection of its own."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, path, body, dict(headers or {}))
        reply = connection.getresponse()
        return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())


@dataclass
class Gateway:
    """A gateway that runs, and the owner of its database."""

    db: ContractDatabase
    tenants: Tenants
    worker: GatewayWorker
    login: str
    owner: Any
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def port(self) -> int:
        return self.worker.port

    def client(self, account: str, **options: Any) -> Client:
        """A client of an account, which is made when it is not there, with a new key."""
        if account not in {each.account for each in accounts.list_accounts(self.owner)}:
            accounts.create_account(self.owner, account)
        key = accounts.create_key(self.owner, account, MASTERS, **options)
        return Client(self.port, account, key)

    def sequence(self) -> None:
        """Give all events their sequences."""
        while log.sequence(self.owner).more:
            pass

    @contextmanager
    def sequencing(self) -> Iterator[None]:
        """Sequence all the time."""
        stop = threading.Event()

        def run() -> None:
            with database.connect(self.db.url) as connection:
                while not stop.wait(0.01):
                    try:
                        log.sequence(connection)
                    except LogBehind:
                        return

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@contextmanager
def gateway_of(db: ContractDatabase, **options: Any) -> Iterator[Gateway]:
    """A gateway over a database, with a login that has the role for it and nothing else."""
    with tenants_of(db) as tenants:
        tenants.install()
        login = tenants.login("gateway")
        database.call(tenants.owner, "record_gateway", login=login)
        usual: dict[str, Any] = {"request_log": "none", "failures_a_minute": 1_000_000}
        settings = GatewaySettings(
            url=tenants.url_of(login), port=0, connections=4, **(usual | options)
        )
        worker = GatewayWorker(settings, MASTERS)
        made = Gateway(db, tenants, worker, login, tenants.owner)
        stop = threading.Event()
        thread = threading.Thread(target=worker.run, args=[stop])
        thread.start()
        try:
            wait_until(lambda: not thread.is_alive() or worker.gauges(), "the gateway is made")
            assert thread.is_alive(), "the gateway did not start"
            yield made
        finally:
            stop.set()
            thread.join()
