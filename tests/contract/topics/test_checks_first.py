"""A call looks at rights before it reads: also where what it reads next is empty."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from penstock import database
from penstock.errors import PenstockError, SubscriptionNotFound, TopicNotFound
from penstock.subscriptions import queue
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.contract.tenants import THEIRS, Tenants, as_login, tenant, three_topics
from tests.kit.proof import proves

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)

#: What reads for a topic, and the rest of its arguments.
OF_TOPICS: dict[str, dict[str, Any]] = {
    "copies_of": {},
    "history_starts_of": {"history": 0},
    "high_watermarks": {},
    "log_epochs_between": {"from_time": LONG_AGO, "to_time": LONG_AGO.replace(year=2036)},
    "log_epochs_of": {},
    "log_epochs_sealed_on": {"sealed_date": date(2026, 1, 31)},
    "missing_copies": {"target": "t"},
    "rehydrated_of": {},
    "reissued_of": {},
    "sequence_gaps": {"known": None},
    "suspected_copies_of": {},
}

#: What reads for a subscription.
OF_SUBSCRIPTIONS = (
    "describe_queue",
    "labels_of_queue",
    "letter_moves_of",
    "queue_pointers",
    "queue_statistics",
    "subscription_policy",
)

#: Ways to join on PostgreSQL, under plans that do not know the arguments: a planner that knows them
#: runs the check by itself, as an estimate.
PLANS = (
    "SET plan_cache_mode = force_generic_plan",
    "SET enable_nestloop = off; SET enable_mergejoin = off; DISCARD PLANS",
    "SET enable_nestloop = on; SET enable_hashjoin = off; DISCARD PLANS",
)


@proves("S22")
def test_a_check_runs_before_what_is_empty(tenants: Tenants) -> None:
    """Guard: the check is a statement of its own, or all that its query reads."""
    three_topics(tenants)
    us = tenant(tenants, "ours")
    tenants.give(us, "letter_moves_of")
    tenant(tenants, "theirs")
    queue.subscribe(tenants.owner, "work", [THEIRS])
    with as_login(tenants, us) as own:
        assert _silent(own, THEIRS, "work") == []
        assert _silent(own, "nobody/orders", "nobody") == []


def test_a_check_runs_where_there_is_nothing_at_all(tenants: Tenants) -> None:
    """No topic, no partition."""
    assert _silent(tenants.owner, "nobody/orders", "nobody") == []


#: Without it copies_of checks nothing.
CHECK: Guard = {
    "postgres": ("copies_of", ":= require_topic(topic);", ":= 0;"),
    "mysql": ("copies_of", "CALL require_topic(topic, source_id);", "SET source_id = 0;"),
}


@proves("S22", guard="the check comes first")
def test_without_a_check_the_call_answers(db: ContractDatabase, tenants: Tenants) -> None:
    """Mutant of one of them."""
    without(db, CHECK)
    assert _silent(tenants.owner, "nobody/orders", "nobody") == ["copies_of"]


def _silent(own: Any, topic: str, subscription: str) -> list[str]:
    """The calls that answer instead of refusing, whatever the plan."""
    found = set()
    for plan in PLANS if database.dialect_of(own) == "postgres" else ("",):
        if plan:
            database.execute(own, plan)
        for name, binds in OF_TOPICS.items():
            if not _refused(own, name, TopicNotFound, topic=topic, **binds):
                found.add(name)
        for name in OF_SUBSCRIPTIONS:
            if not _refused(own, name, SubscriptionNotFound, subscription=subscription):
                found.add(name)
    return sorted(found)


def _refused(own: Any, name: str, kind: type[PenstockError], **binds: Any) -> bool:
    try:
        database.call(own, name, **binds)
    except kind:
        return True
    return False
