"""Which keeper a loop has: one for leases in the subscription's database, or in another store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from penstock.database import config
from penstock.errors import InvalidArgument
from penstock.leases.coordination.registry_keeper import RegistryKeeper
from penstock.leases.database_keeper import LeaseKeeper
from penstock.leases.keeper import Keeper
from penstock.topics import validation


def keeper_for(
    url: str | None,
    subscription: str,
    *,
    consumer_id: str | None = None,
    weight: float = 1.0,
    topics: Sequence[str] | None = None,
    clock: Callable[[], float] = time.monotonic,
    coordination: str | None = None,
    assign: str = "stealing",
) -> Keeper:
    """The keeper for a consumer of a subscription.  It opens nothing before it is entered."""
    url = url or config.database_url()
    if consumer_id is not None:
        validation.name(consumer_id, "consumer")
    if coordination is None:
        if assign != "stealing":
            raise InvalidArgument(
                f"assign is {assign!r}",
                hint="assign= needs coordination=, such as etcd:// or redis://",
            )
        return LeaseKeeper(
            url, subscription, consumer=consumer_id, weight=weight, topics=topics, clock=clock
        )
    if not isinstance(coordination, str):
        raise InvalidArgument(
            f"coordination is a {type(coordination).__name__}", hint="give an address"
        )
    return RegistryKeeper(
        url,
        subscription,
        coordination,
        assign=assign,
        consumer=consumer_id,
        weight=weight,
        topics=topics,
        clock=clock,
    )
