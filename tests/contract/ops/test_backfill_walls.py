"""Two tenants: neither sees, claims, moves or ends the other's backfill requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from ops.backfill import requests as requests
from ops.backfill.requests import BackfillClaim, Window
from ops.seal import seal
from penstock.errors import InvalidArgument, StaleAttempt
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.contract.tenants import OURS, THEIRS, Tenants, as_login, tenant, tenants_of, three_topics

NO_WALL: dict[str, Guard] = {
    "hold": {
        "postgres": ("hold_backfill", "OR NOT sees_topic(held.topic_id, 'operate')", ""),
        "mysql": ("hold_backfill", "OR NOT is_seen", ""),
    },
    "claim": {
        "postgres": ("claim_backfill", "AND sees_topic(r.topic_id, 'operate')", ""),
        "mysql": ("lock_due_backfill", "AND sees_topic(r.topic_id, 'operate')", ""),
    },
    "cancel": {
        "postgres": ("cancel_backfill", "NOT sees_topic(found_row.topic_id, 'operate')", "false"),
        "mysql": ("cancel_backfill", "IF NOT is_seen THEN", "IF FALSE THEN"),
    },
    "ranges": {
        "postgres": ("backfill_ranges", "AND sees_topic(r.topic_id, 'read')", ""),
        "mysql": ("backfill_ranges", "AND sees_topic(r.topic_id, 'read')", ""),
    },
}


@pytest.fixture
def tenants(db: ContractDatabase) -> Iterator[Tenants]:
    """A topic for us and one for them, and a request of each."""
    with tenants_of(db) as found:
        three_topics(found)
        for topic in (OURS, THEIRS):
            seal(found.owner, topic, max_age_seconds=0)
            requests.request_backfill(found.owner, topic, "copy", "a")
        yield found


def _theirs(tenants: Tenants) -> BackfillClaim:
    """Their request, which their own runner has claimed."""
    (found,) = requests.list_backfills(tenants.owner, THEIRS)
    claim = requests.claim_backfill(tenants.owner, "their runner", request=found.request)
    assert claim is not None
    return claim


def test_a_login_meets_only_the_requests_of_topics_that_it_may_see(tenants: Tenants) -> None:
    """Guard: the right in claim, in the fence, in cancel and in the lists."""
    login = tenant(tenants, "ours")
    tenant(tenants, "theirs")
    (waiting,) = requests.list_backfills(tenants.owner, THEIRS)
    with as_login(tenants, login) as own:
        (listed,) = requests.list_backfills(own)
        assert listed.topic == OURS
        assert requests.claim_backfill(own, "spy", request=waiting.request) is None
        theirs = _theirs(tenants)
        for name in NO_WALL:
            _refused(name, own, theirs)
        mine = requests.claim_backfill(own, "mine")
        assert mine is not None
        assert mine.topic == OURS
        for unit in requests.open_units(own, mine, None, 10):
            requests.progress(own, mine, unit)
        requests.finish(own, mine)
    (untouched,) = requests.list_backfills(tenants.owner, THEIRS)
    assert (untouched.state, untouched.done_units) == ("running", 0)


def _refused(name: str, own: Any, theirs: BackfillClaim) -> None:
    assert _attack(name, own, theirs) is False, name


def _attack(name: str, own: Any, theirs: BackfillClaim) -> bool:
    """Whether the attack gets through."""
    try:
        if name == "hold":
            return bool(requests.open_units(own, theirs, None, 10))
        if name == "claim":
            return requests.claim_backfill(own, "spy", request=theirs.request) is not None
        if name == "cancel":
            return requests.cancel(own, theirs.request)
        return bool(requests.ranges(own, theirs.request))
    except (StaleAttempt, InvalidArgument):
        return False


@pytest.mark.parametrize("name", NO_WALL)
def test_without_the_guard_the_wall_is_open(
    db: ContractDatabase, tenants: Tenants, name: str
) -> None:
    """Mutants of the same."""
    login = tenant(tenants, "ours")
    tenant(tenants, "theirs")
    theirs = _theirs(tenants)
    if name == "claim":
        requests.fail(tenants.owner, theirs, "again", base_seconds=0)
    without(db, NO_WALL[name])
    with as_login(tenants, login) as own:
        assert _attack(name, own, theirs)


def test_who_may_only_read_sees_a_request_and_makes_none(tenants: Tenants) -> None:
    login = tenants.tenant()
    penstock.grant_namespace(tenants.owner, "theirs", login, "read")
    (listed,) = requests.list_backfills(tenants.owner, THEIRS)
    with as_login(tenants, login) as own:
        assert requests.list_backfills(own, THEIRS)[0].request == listed.request
        assert requests.ranges(own, listed.request)
        assert requests.claim_backfill(own, "spy", request=listed.request) is None
        with pytest.raises(penstock.errors.TopicNotFound):
            requests.request_backfill(own, THEIRS, "copy", "a", Window())
        with pytest.raises(InvalidArgument, match="no backfill request"):
            requests.cancel(own, listed.request)
