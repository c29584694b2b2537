"""What the tests of consumers share that have their leases in etcd, Redis or memory."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from penstock.consumer.stream.consumer import Consumer
from penstock.leases.coordination.registry_keeper import RegistryKeeper
from penstock.records import Event
from tests.kit.stream import SUBSCRIPTION


def memory() -> str:
    """The URL of an empty store in this process."""
    return f"memory://{uuid.uuid4().hex}"


class Seen:
    """A handler that remembers what it was given, by partition."""

    def __init__(self) -> None:
        self.sequences: dict[int, list[int]] = {}

    def __call__(self, event: Event) -> None:
        self.sequences.setdefault(event.partition, []).append(event.sequence)

    @property
    def count(self) -> int:
        return sum(map(len, self.sequences.values()))


def consumer(
    url: str, store: str | None, handler: Callable[[Any], object], name: str = "a", **options: Any
) -> Consumer:
    """A consumer that looks often."""
    return Consumer(
        url,
        SUBSCRIPTION,
        handler=handler,
        consumer_id=name,
        idle_seconds=0.05,
        coordination=store,
        **options,
    )


def killed(database_url: str, store: str) -> RegistryKeeper:
    """A consumer that holds everything and does nothing any more."""
    dead = RegistryKeeper(database_url, SUBSCRIPTION, store, consumer="dead").__enter__()
    stopped(dead)
    return dead


def stopped(keeper: RegistryKeeper) -> None:
    """As a process that is gone: it renews nothing, and gives nothing back."""
    keeper._ended.set()
    keeper._hurry.set()
    for thread in keeper._threads:
        thread.join()


def expired(keeper: RegistryKeeper) -> None:
    """What the store does when a consumer's lease time has passed."""
    registry: Any = keeper._registry
    kind = type(registry).__name__
    if kind == "MemoryRegistry":
        registry._space.consumers[keeper.consumer].deadline = 0.0
    elif kind == "EtcdRegistry":
        registry._leases[keeper.consumer].revoke()
    else:
        assert registry._redis.pexpire(f"{registry._base}:alive:{keeper.consumer}", 0)
