"""The calls about failures, each of which names a subscription: for the test of the walls."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from penstock import database
from penstock.subscriptions import dead_letters, forwarding, queue

Call = Callable[[Any, str], object]


def _held(name: str, /, **binds: Any) -> Call:
    return lambda own, subscription: database.call(
        own, name, subscription=subscription, consumer="spy", **binds
    )


_LEASE = {"partition_id": 1, "lease_epoch": 1}
_LEASES = {"partition_ids": [1], "lease_epochs": [1]}

FAILURES: dict[str, Call] = {
    "suspects": _held("suspects", **_LEASES),
    "begin_attempt": _held("begin_attempt", sequence=1, uncounted=0, reason="", **_LEASE),
    "bring_letter": _held(
        "bring_letter",
        sequence=1,
        event_id=uuid.UUID(int=1),
        key=None,
        type="",
        content_type="",
        headers=None,
        payload=b"",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        **_LEASE,
    ),
    "give_up": _held("give_up", sequence=1, reason="", attempts=1, park=False, **_LEASE),
    "parked_keys": lambda own, name: dead_letters.parked_keys(own, name, []),
    "commit_parking": _held("commit_parking", position=1, after=0, sequences=[1], **_LEASE),
    "poll_redriven": _held("poll_redriven", max_events=1, **_LEASES),
    "finish_redriven": _held("finish_redriven", letter_ids=[1], **_LEASE),
    "fail_redriven": _held("fail_redriven", letter_id=1, reason="", **_LEASE),
    "redrive": dead_letters.redrive,
    "set_dead_letters_to": lambda own, name: forwarding.set_dead_letters_to(own, name, None),
    "move_letters": lambda own, name: forwarding.move(
        own, name, [queue.Receipt(1, 1, uuid.UUID(int=1))]
    ),
    "drop_dead_letters": lambda own, name: dead_letters.drop(own, name, [1]),
}
