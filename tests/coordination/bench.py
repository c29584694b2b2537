"""One registry of each kind with the same small interface, and its guards."""

from __future__ import annotations

import types
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from etcd3gw.client import Etcd3Client
from etcd3gw.lease import Lease
from redis import Redis

from penstock.leases.coordination import LeaseRegistry, memory
from penstock.leases.coordination.sql import SqlRegistry
from tests.contract.databases import ContractDatabase
from tests.contract.stream_guards import NO_EPOCH, NO_FENCE, NO_LIMIT, NOT_FORWARD
from tests.contract.stream_kit import end_lease
from tests.kit.stream import SUBSCRIPTION, filled

PARTITIONS = 8
EVENTS = 20
LEASE_SECONDS = 30.0

Text = tuple[str, str]
#: Guard, kind of registry: what stands there, and what the mutant has instead.
IN_PYTHON: Mapping[str, Mapping[str, Text]] = {
    "a live lease is not taken": {
        "memory": ("lease.lease_epoch != lease_epoch or self._is_held(lease)", "False"),
        "etcd": (", _absent(self._alive_key(dead)), alive]", ", alive]"),
        "redis": ("~= epoch or is_held(lease) then", "~= epoch then"),
    },
    "the epoch that was seen": {
        "memory": ("lease.lease_epoch != lease_epoch or ", ""),
        "etcd": (
            "_equal(key, str(lease_epoch)), alive]",
            "_equal(key, str(self.snapshot().partitions[partition_id].lease_epoch)), alive]",
        ),
        "redis": ("string.match(lease, '^%d+') ~= epoch or ", ""),
    },
    "the epoch grows": {
        "memory": ("lease.lease_epoch += 1", "lease.lease_epoch += 0"),
        "etcd": ("_put(key, _held(lease_epoch + 1, ", "_put(key, _held(lease_epoch, "),
        "redis": ("(str(lease_epoch), str(lease_epoch + 1))", "(str(lease_epoch),) * 2"),
    },
    "the epoch of a commit": {
        "memory": ("\n            and lease.lease_epoch == lease_epoch", ""),
        "etcd": (
            "_equal(self._lease_key(partition_id), _held(lease_epoch, session, consumer)),\n",
            "\n",
        ),
        "redis": ("if lease ~= held then return 0 end\n", ""),
    },
    "the dead do not commit": {
        "memory": ("or not self._is_held(lease)\n", "\n"),
        "etcd": ("self._is_alive(session),\n                _less(", "_less("),
        "redis": ("if not is_held(lease) then return 0 end\nif redis.call('HGET'",
                  "if redis.call('HGET'"),
    },
    "positions move forward": {
        "memory": ("or position <= lease.position\n", "\n"),
        "etcd": ("_less(self._position_key(partition_id), _text(position)),\n", "\n"),
        "redis": (":positions', partition) >= position then", ":positions', partition) == '' then"),
    },
    "the term of a decision": {
        "memory": ("self._space.leader != (term, present.session)", "False"),
        "etcd": (
            '_equal(self._base + "leader", _held(term, session, consumer)),\n',
            "\n",
        ),
        "redis": ("if redis.call('GET', base .. ':leader') ~= leader then return 0 end\n", ""),
    },
}  # fmt: skip
IN_SQL: Mapping[str, Mapping[str, list[tuple[str, str, str]]]] = {
    "a live lease is not taken": {
        "postgres": [("claim", "AND c.id = present.holder AND", "AND false AND")],
        "mysql": [("claim", "AND c.id = held_by AND", "AND FALSE AND")],
    },
    "the epoch that was seen": {
        "postgres": [("claim", "AND l.lease_epoch = claim.lease_epoch", "")],
        "mysql": [("claim", "AND l.lease_epoch = lease_epoch", "")],
    },
    "the epoch grows": {
        "postgres": [("claim", "holder = consumer, lease_epoch = present.lease_epoch + 1,",
                      "holder = consumer, lease_epoch = present.lease_epoch,")],
        "mysql": [("claim", "l.lease_epoch = free_epoch + 1", "l.lease_epoch = free_epoch")],
    },
    "the epoch of a commit": {name: [guard] for name, guard in NO_EPOCH.items()},
    # The time limit of its transaction ends it as well, before it can commit.
    "the dead do not commit": {name: [NO_FENCE[name], NO_LIMIT[name]] for name in NO_FENCE},
    "positions move forward": NOT_FORWARD,
    "the term of a decision": {
        "postgres": [
            ("assign_partitions", "AND l.term = assign_partitions.term AND", "AND true OR"),
        ],
        "mysql": [("assign_partitions", "AND l.term = term AND", "AND TRUE OR")],
    },
}  # fmt: skip
GUARDS = tuple(IN_PYTHON)


class Bench(ABC):
    """Where registries of one kind are opened; each ``open`` is as another process would."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.partition_ids = list(range(1, PARTITIONS + 1))
        #: No position lies beyond it.
        self.last_event = 10**9
        self._opened: list[LeaseRegistry] = []

    def open(self) -> LeaseRegistry:
        """A further registry on the same store."""
        registry = self._open()
        registry.initialize(dict.fromkeys(self.partition_ids, 0))
        self._opened.append(registry)
        return registry

    @abstractmethod
    def expire(self, consumer: str) -> None:
        """End a consumer's lease time as the store itself would."""

    @abstractmethod
    def without(self, guard: str) -> None:
        """From now on, registries are mutants that lack a guard."""

    @abstractmethod
    def _open(self) -> LeaseRegistry: ...

    def close(self) -> None:
        """Close what was opened."""
        for each in self._opened:
            each.close()


class InPython(Bench):
    """A registry whose guards stand in a module of ours."""

    def __init__(self, kind: str, module: types.ModuleType) -> None:
        super().__init__(kind)
        self.module = module

    def without(self, guard: str) -> None:
        self.module = mutant(self.module, *IN_PYTHON[guard][self.kind])


class InMemory(InPython):
    def __init__(self) -> None:
        super().__init__("memory", memory)
        self.now = 0.0
        self.space = memory.Space(LEASE_SECONDS, clock=lambda: self.now)

    def _open(self) -> LeaseRegistry:
        registry: LeaseRegistry = self.module.MemoryRegistry(self.space)
        return registry

    def expire(self, consumer: str) -> None:
        self.space.consumers[consumer].deadline = self.now


class InStore(InPython):
    """etcd or Redis; every test has a subscription of its own."""

    def __init__(self, kind: str, module: types.ModuleType, url: str) -> None:
        super().__init__(kind, module)
        self.url = url
        self.subscription = f"tests/{uuid.uuid4()} ä"
        self.lease_seconds = LEASE_SECONDS

    def _open(self) -> LeaseRegistry:
        name = {"etcd": "EtcdRegistry", "redis": "RedisRegistry"}[self.kind]
        kind: Callable[..., LeaseRegistry] = getattr(self.module, name)
        return kind(self.url, self.subscription, lease_seconds=self.lease_seconds)

    def expire(self, consumer: str) -> None:
        if self.kind == "redis":
            with Redis.from_url(self.url) as server:
                key = f"{{penstock:{self.subscription}}}:alive:{consumer}"
                assert server.pexpire(key, 0)
            return
        host, port = self.url.removeprefix("etcd://").split(":")
        server = Etcd3Client(host, int(port), timeout=5)
        for _, meta in server.get_prefix(f"penstock/{quote(self.subscription, safe='')}/"):
            if meta["key"].decode().endswith(f"/consumers/{consumer}") and "lease" in meta:
                # What etcd does when the time has passed.
                Lease(int(meta["lease"]), server).revoke()
        server.session.close()


class InDatabase(Bench):
    def __init__(self, db: ContractDatabase) -> None:
        super().__init__(db.engine)
        self.db = db
        self.last_event = EVENTS
        filled(db.connect(), PARTITIONS, EVENTS)
        rows = db.run("SELECT partition_id FROM penstock.leases ORDER BY partition_id")
        self.partition_ids = [int(row[0]) for row in rows]

    def _open(self) -> LeaseRegistry:
        return SqlRegistry(self.db.url, SUBSCRIPTION)

    def expire(self, consumer: str) -> None:
        end_lease(self.db, consumer)

    def without(self, guard: str) -> None:
        dialect = "postgres" if self.db.engine == "postgres" else "mysql"
        for each in IN_SQL[guard][dialect]:
            self.db.without_guard(*each)


def mutant(module: types.ModuleType, old: str, new: str) -> types.ModuleType:
    """The module with another text in one place."""
    source = Path(str(module.__file__)).read_text()
    assert source.count(old) == 1, f"{module.__name__} holds {old!r} {source.count(old)} times"
    made = types.ModuleType(module.__name__)
    made.__file__ = module.__file__
    exec(compile(source.replace(old, new), str(module.__file__), "exec"), made.__dict__)
    return made


def state(registry: LeaseRegistry, partition_id: int) -> Any:
    """One partition, as of now."""
    return registry.snapshot().partitions[partition_id]
