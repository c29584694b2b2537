"""What a stream knows of an event that was erased: no reason that may quote it comes back."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import database
from penstock.records import Lease
from penstock.subscriptions import dead_letters, stream
from penstock.subscriptions.stream import Membership
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.kit.log import drain, put
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, member_with_lease

#: Nothing is a tombstone.
ANY_REASON: Guard = {
    "postgres": ("is_tombstone", "is_tombstone.payload = ''", "false"),
    "mysql": ("is_tombstone", "payload_length = 0", "FALSE"),
}


def _read(own: Any) -> tuple[Membership, Lease]:
    """One event, which a consumer has in memory."""
    filled(own, events=0)
    put(own, "secret", key="k", name=STREAM)
    drain(own)
    member, lease = member_with_lease(own, "a")
    assert stream.poll(own, member, [lease])
    return member, lease


def _erase(own: Any) -> None:
    ((erasure,),) = database.call(
        own, "begin_erasure", topic=STREAM, event_id=None, key="k", reason="why", replace_key=False
    )
    database.call(
        own, "erase_events", erasure=erasure, partition=0, sequences=[1], old_checksum=None,
        checksum=None,
    )  # fmt: skip
    database.call(own, "erase_letters", erasure=erasure, key="k", max_rows=10)
    database.call(own, "finish_erasure", erasure=erasure)


def _reason(own: Any) -> str:
    (letter,) = dead_letters.dead_letters(own, SUBSCRIPTION)
    return letter.reason


def _given_up_after(own: Any) -> str:
    member, lease = _read(own)
    _erase(own)
    dead_letters.give_up(own, member, lease, 1, "cannot parse secret", attempts=1)
    return _reason(own)


def _failed_again_after(own: Any) -> str:
    member, lease = _read(own)
    dead_letters.give_up(own, member, lease, 1, "cannot parse secret", attempts=1)
    dead_letters.redrive(own, SUBSCRIPTION)
    ((letter,),) = database.execute(own, "SELECT id FROM penstock.dead_letters")
    _erase(own)
    fence = {
        "subscription": SUBSCRIPTION, "consumer": "a", "partition_id": lease.partition_id,
        "lease_epoch": lease.lease_epoch,
    }  # fmt: skip
    database.call(own, "fail_redriven", **fence, letter_id=letter, reason="cannot parse secret")
    return _reason(own)


def _relayed_after(own: Any) -> str:
    member, lease = _read(own)
    _erase(own)
    database.call(
        own, "dead_letter", subscription=SUBSCRIPTION, consumer=member.consumer,
        partition_id=lease.partition_id, lease_epoch=lease.lease_epoch, sequence=1,
        reason="cannot parse secret",
    )  # fmt: skip
    return _reason(own)


@proves("an erasure in queues and dead letters")
@pytest.mark.parametrize("way", [_given_up_after, _failed_again_after, _relayed_after])
def test_who_still_has_the_event_brings_nothing_of_it_back(db: ContractDatabase, way: Any) -> None:
    """Guard: is_tombstone in what writes reasons."""
    assert "secret" not in way(db.connect())


@proves("an erasure in queues and dead letters", guard="is_tombstone")
def test_without_that_its_error_quotes_the_event(db: ContractDatabase) -> None:
    """Mutant: the reason is in the table of dead letters after the erasure."""
    without(db, ANY_REASON)
    assert "secret" in _failed_again_after(db.connect())
