"""A registry in etcd: each step is one transaction, lease times are etcd's leases.

The keys of a subscription, below ``<prefix>/<subscription>/``:

- ``consumers/<name>``: "session weight", and ``alive/<session>``: etcd deletes both when
  the consumer's own etcd lease ends;
- ``leases/<partition>``: "epoch", or "epoch session consumer" while a consumer holds it;
- ``positions/<partition>``: a text of fixed length, so that etcd itself can compare two;
- ``leader``: "term session consumer"; ``assignment``: what the leader has decided.
"""

from __future__ import annotations

import base64
import json
import math
import threading
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from penstock.database.config import redact
from penstock.errors import CoordinationUnavailable, MissingExtra
from penstock.leases.coordination.etcd_endpoints import Endpoints, endpoints_of
from penstock.leases.coordination.registry import (
    DIGITS,
    Assignment,
    Holding,
    LeaseRegistry,
    Snapshot,
    duplicate,
    require_position,
    stale,
    unknown,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from etcd3gw.client import Etcd3Client
    from etcd3gw.lease import Lease

TIMEOUT_SECONDS = 5.0

_Operation = dict[str, Any]


class EtcdRegistry(LeaseRegistry):
    """The registry of one subscription in the etcd at ``url``, ``etcd://host:port,host:port``.

    etcd counts lease times in whole seconds, so they are rounded up.
    """

    def __init__(
        self,
        url: str,
        subscription: str,
        *,
        lease_seconds: float = 10.0,
        prefix: str = "penstock",
    ) -> None:
        super().__init__()
        self._where_it_is = redact(url)
        self._ttl = math.ceil(lease_seconds)
        self._base = f"{prefix}/{quote(subscription, safe='')}/"
        self._leases: dict[str, Lease] = {}
        self._etcd = _client(url)
        # A requests session is not for several threads at once.
        self._lock = threading.RLock()
        with self._reachable():
            self._etcd.status()

    def initialize(self, positions: Mapping[int, int], *, lease_epoch: int = 0) -> int:
        known = self.snapshot().partitions
        return sum(
            self._done(
                [_absent(self._lease_key(partition_id))],
                [
                    _put(self._lease_key(partition_id), str(lease_epoch)),
                    _put(self._position_key(partition_id), _text(position)),
                ],
            )
            for partition_id, position in positions.items()
            if partition_id not in known
        )

    def _register(self, consumer: str, session: str, weight: float) -> None:
        key = f"{self._base}consumers/{quote(consumer, safe='')}"
        with self._reachable():
            lease = self._etcd.lease(self._ttl)
            if not self._done(
                [_absent(key)],
                [
                    _put(key, f"{session} {weight!r}", lease),
                    _put(self._alive_key(session), consumer, lease),
                ],
            ):
                lease.revoke()
                raise duplicate(consumer)
        self._leases[consumer] = lease

    def deregister(self, consumer: str) -> None:
        lease, session = self._leases.pop(consumer, None), self._sessions.pop(consumer, None)
        if lease is None or session is None:
            return
        snapshot = self.snapshot()
        for each in snapshot.partitions.values():
            if each.holder == consumer:
                self._free(each.partition_id, _held(each.lease_epoch, session, consumer))
        with self._reachable():
            if lease.ttl() >= 0:  # else etcd has ended it
                lease.revoke()

    def renew(self, consumer: str) -> None:
        self._session(consumer)
        with self._reachable():
            if self._leases[consumer].refresh() <= 0:
                raise unknown(consumer)

    def claim(self, partition_id: int, consumer: str, lease_epoch: int) -> Holding | None:
        session, key = self._session(consumer), self._lease_key(partition_id)
        taken = [
            _put(key, _held(lease_epoch + 1, session, consumer)),
            _get(self._position_key(partition_id)),
        ]
        alive, look = self._is_alive(session), [_get(key), _get(self._alive_key(session))]
        done, found = self._transaction([_equal(key, str(lease_epoch)), alive], taken, look)
        if not done and (dead := self._last_session(found.get(key), lease_epoch)):
            # The last holder is dead now; the next run of that consumer would have another session.
            conditions = [_equal(key, found[key]), _absent(self._alive_key(dead)), alive]
            done, found = self._transaction(conditions, taken, look)
        if done:
            position = int(found[self._position_key(partition_id)])
            return Holding(partition_id, consumer, True, lease_epoch + 1, position)
        if self._alive_key(session) not in found:
            raise unknown(consumer)
        if key not in found:
            self._known(self.snapshot(), partition_id)
        return None

    def release(self, partition_id: int, consumer: str, lease_epoch: int) -> bool:
        held = _held(lease_epoch, self._sessions.get(consumer, "-"), consumer)
        return self._free(partition_id, held)

    def update_position(
        self, partition_id: int, consumer: str, position: int, lease_epoch: int
    ) -> None:
        session = self._sessions.get(consumer, "-")
        done = self._done(
            [
                _equal(self._lease_key(partition_id), _held(lease_epoch, session, consumer)),
                self._is_alive(session),
                _less(self._position_key(partition_id), _text(position)),
            ],
            [_put(self._position_key(partition_id), _text(position))],
        )
        if not done:
            raise self._refused(partition_id, consumer, position, lease_epoch)

    def lead(self, consumer: str) -> int | None:
        session, key = self._session(consumer), self._base + "leader"
        look = [_get(key), _get(self._alive_key(session))]
        _, found = self._transaction([], look)
        if self._alive_key(session) not in found:
            raise unknown(consumer)
        term, present, _ = found.get(key, "0 - -").split(" ", 2)
        if present == session:
            return int(term)
        next_term = int(term) + 1
        won = self._done(
            [
                _equal(key, found[key]) if key in found else _absent(key),
                _absent(self._alive_key(present)),
                self._is_alive(session),
            ],
            [_put(key, _held(next_term, session, consumer))],
        )
        return next_term if won else None

    def assign(self, consumer: str, term: int, holders: Mapping[int, str]) -> None:
        session = self._sessions.get(consumer, "-")
        plan = json.dumps({"term": term, "holders": dict(holders)})
        if not self._done(
            [
                _equal(self._base + "leader", _held(term, session, consumer)),
                self._is_alive(session),
            ],
            [_put(self._base + "assignment", plan)],
        ):
            raise stale(f"term {term} of leader {consumer!r} is over")

    def snapshot(self) -> Snapshot:
        stored = self._all()
        consumers = _below(self._base + "consumers/", stored)
        weights = {unquote(name): text.split(" ")[1] for name, text in consumers.items()}
        sessions = _below(self._base + "alive/", stored)
        leases = _below(self._base + "leases/", stored)
        positions = _below(self._base + "positions/", stored)
        holdings = [
            _holding(partition, leases[partition], position, sessions)
            for partition, position in positions.items()
        ]
        plan = json.loads(stored.get(self._base + "assignment", '{"term": 0, "holders": {}}'))
        return Snapshot(
            {name: float(weights[name]) for name in sorted(weights)},
            {each.partition_id: each for each in sorted(holdings, key=lambda h: h.partition_id)},
            Assignment(plan["term"], {int(p): who for p, who in plan["holders"].items()}),
        )

    def close(self) -> None:
        self._etcd.session.close()

    def _all(self) -> dict[str, str]:
        """All keys of the subscription, at one revision."""
        with self._reachable():
            return {
                meta["key"].decode(): value.decode()
                for value, meta in self._etcd.get_prefix(self._base)
            }

    def _free(self, partition_id: int, held: str) -> bool:
        key = self._lease_key(partition_id)
        return self._done([_equal(key, held)], [_put(key, held.split(" ", 1)[0])])

    def _last_session(self, stored: str | None, lease_epoch: int) -> str | None:
        epoch, *held = (stored or "").split(" ", 2)
        return held[0] if held and epoch == str(lease_epoch) else None

    def _done(self, conditions: list[_Operation], then: list[_Operation]) -> bool:
        return self._transaction(conditions, then)[0]

    def _transaction(
        self,
        conditions: list[_Operation],
        then: list[_Operation],
        otherwise: list[_Operation] | None = None,
    ) -> tuple[bool, dict[str, str]]:
        """Returns whether the conditions held, and what the branch that was taken has read."""
        request = {"compare": conditions, "success": then, "failure": otherwise or []}
        with self._reachable():
            answer: Any = self._etcd.transaction(request)
        found = {
            _decoded(pair["key"]): _decoded(pair["value"])
            for response in answer.get("responses", [])
            for pair in response.get("response_range", {}).get("kvs", [])
        }
        return bool(answer.get("succeeded", False)), found

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        from etcd3gw.exceptions import Etcd3Exception

        try:
            with self._lock:
                yield
        except Etcd3Exception as error:
            raise CoordinationUnavailable(
                f"the etcd at {self._where_it_is} does not answer: {error.detail_text or error}",
                hint="check that it runs and has a leader",
            ) from error

    def _is_alive(self, session: str) -> _Operation:
        compared = {"target": "VERSION", "result": "GREATER", "version": 0}
        return {"key": _encoded(self._alive_key(session)), **compared}

    def _alive_key(self, session: str) -> str:
        return f"{self._base}alive/{session}"

    def _lease_key(self, partition_id: int) -> str:
        return f"{self._base}leases/{partition_id}"

    def _position_key(self, partition_id: int) -> str:
        return f"{self._base}positions/{partition_id}"


def _absent(key: str) -> _Operation:
    return {"key": _encoded(key), "target": "VERSION", "result": "EQUAL", "version": 0}


def _equal(key: str, value: str) -> _Operation:
    return {"key": _encoded(key), "target": "VALUE", "result": "EQUAL", "value": _encoded(value)}


def _less(key: str, value: str) -> _Operation:
    return {"key": _encoded(key), "target": "VALUE", "result": "LESS", "value": _encoded(value)}


def _get(key: str) -> _Operation:
    return {"request_range": {"key": _encoded(key)}}


def _put(key: str, value: str, lease: Lease | None = None) -> _Operation:
    request: _Operation = {"key": _encoded(key), "value": _encoded(value)}
    if lease is not None:
        request["lease"] = lease.id
    return {"request_put": request}


def _held(epoch: int, session: str, consumer: str) -> str:
    return f"{epoch} {session} {consumer}"


def _holding(partition: str, lease: str, position: str, sessions: Mapping[str, str]) -> Holding:
    epoch, *held = lease.split(" ", 2)
    live = bool(held) and held[0] in sessions
    return Holding(int(partition), held[1] if held else None, live, int(epoch), int(position))


def _below(folder: str, stored: Mapping[str, str]) -> dict[str, str]:
    return {key[len(folder) :]: value for key, value in stored.items() if key.startswith(folder)}


def _text(position: int) -> str:
    return f"{require_position(position):0{DIGITS}}"


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()


def _client(url: str) -> Etcd3Client:
    try:
        from etcd3gw.client import Etcd3Client
    except ImportError as error:
        raise MissingExtra.of("etcd3gw", "etcd3gw") from error
    addresses = endpoints_of(url)
    first = urlsplit(addresses[0])
    client = Etcd3Client(
        host=first.hostname or "",
        port=first.port or 0,
        protocol=first.scheme,
        timeout=TIMEOUT_SECONDS,
    )
    endpoints: Any = Endpoints(client.session, client.base_url, addresses)
    client.session = endpoints
    return client
