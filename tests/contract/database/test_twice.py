"""S24: a call whose answer was lost is made again, and the state is as after one call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from penstock.errors import BackwardCommit, PenstockError
from penstock.records import Lease
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership
from tests.contract.databases import ContractDatabase
from tests.contract.stream_guards import NOT_FORWARD
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, member_with_lease

Call = Callable[[Any, Membership, Lease], object]

CALLS: dict[str, Call] = {
    "subscribe": lambda own, member, lease: stream.subscribe(own, SUBSCRIPTION, [STREAM]),
    "configure": lambda own, member, lease: stream.configure_subscription(
        own, SUBSCRIPTION, heartbeat_seconds=1, lease_seconds=5, release_seconds=5
    ),
    "heartbeat": lambda own, member, lease: stream.heartbeat(own, member),
    "check_in": lambda own, member, lease: stream.check_in(own, member),
    "commit": lambda own, member, lease: stream.commit(own, member, [(lease, 5)], after=[0]),
    "release": lambda own, member, lease: stream.release(own, member, [lease]),
    "leave": lambda own, member, lease: stream.leave(own, member),
    "unsubscribe": lambda own, member, lease: stream.unsubscribe(own, SUBSCRIPTION),
    "seek": lambda own, member, lease: stream.seek(own, SUBSCRIPTION, STREAM, 0, 4),
}

#: What others can see: who holds what, where everything stands, and every step of a position.
VISIBLE = (
    "SELECT s.name, s.heartbeat_seconds, s.policy_version FROM penstock.subscriptions AS s",
    "SELECT c.id FROM penstock.consumers AS c",
    "SELECT l.partition_id, l.state, l.holder FROM penstock.leases AS l",
    "SELECT p.partition_id, p.position FROM penstock.positions AS p WHERE p.reason <> 'seek'",
)


def _state(db: ContractDatabase) -> list[Any]:
    found: list[Any] = [db.run(query) for query in VISIBLE]
    with suppress(PenstockError):  # it is no more
        found.append(stream.position(db.connect(), SUBSCRIPTION, STREAM))
    return found


@proves("S24")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_made_again_changes_nothing_more(db: ContractDatabase, name: str) -> None:
    """Guards: forward only; who is gone stays gone; what is there is not added."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    CALLS[name](own, member, lease)
    once = _state(db)
    with suppress(PenstockError):
        CALLS[name](own, member, lease)
    assert _state(db) == once


@proves("S24", guard="the comparison with the position")
def test_without_the_comparison_a_commit_counts_twice(db: ContractDatabase) -> None:
    """Mutant: the second one is taken, too."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    CALLS["commit"](own, member, lease)
    once = _state(db)
    with pytest.raises(BackwardCommit):
        CALLS["commit"](own, member, lease)
    for guard in NOT_FORWARD["postgres" if db.engine == "postgres" else "mysql"]:
        db.without_guard(*guard)
    CALLS["commit"](own, member, lease)
    assert _state(db) != once
