"""Policies on every engine: inherited, versioned, and in force where a check-in reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import penstock
from penstock import database
from penstock.database import calls
from penstock.errors import (
    InvalidArgument,
    NamespaceNotFound,
    PenstockError,
    SubscriptionNotFound,
    TopicNotFound,
    WrongIsolation,
)
from penstock.subscriptions import policies, stream
from penstock.subscriptions.policies import (
    SETTINGS,
    clear_policy,
    policy_of,
    set_policy,
    subscription_policy,
)
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count, open_transaction
from tests.contract.stream_kit import Guard, without
from tests.kit.proof import proves

SUBSCRIPTION = "readers"
ORDERS, BILLS = "shop/eu/orders", "shop/bills"
GLOBAL = {"scope": "global"}
SHOP = {"scope": "namespace", "name": "shop"}
EU = {"scope": "namespace", "name": "shop/eu"}
TOPIC = {"scope": "topic", "name": ORDERS}
OTHER = {"scope": "topic", "name": BILLS}
OWN = {"scope": "subscription", "name": SUBSCRIPTION}

LOCKS_READERS: Guard = {
    "postgres": (
        "refresh_policy",
        "FOR NO KEY UPDATE",
        "",
    ),
    "mysql": (
        "refresh_policy",
        "SELECT s.id INTO locked FROM subscriptions AS s WHERE s.id = owner_id FOR UPDATE;",
        "",
    ),
}
LOCKS_TOPICS: Guard = {
    "postgres": (
        "lock_policy_scope",
        "WHERE found_id = 0 OR t.namespace_id = ANY (namespaces_below(found_id))",
        "WHERE false",
    ),
    "mysql": (
        "lock_topics_below",
        "WHERE of_namespace = 0 OR LEFT(t.address, CHAR_LENGTH(path_below)) = path_below",
        "WHERE t.id = 0",
    ),
}
LOCKS_SCOPE: Guard = {
    "postgres": (
        "lock_policy_scope",
        "WHERE s.id = found_id FOR NO KEY UPDATE",
        "WHERE s.id = found_id",
    ),
    "mysql": (
        "lock_policy_scope",
        "CALL lock_subscription(of_name, scope_id);",
        "CALL require_subscription(of_name, scope_id);",
    ),
}


@pytest.fixture
def own(db: ContractDatabase) -> Any:
    """Two topics, one below the other's namespace, and a subscription that reads the deeper one."""
    connection = db.connect()
    for topic in (ORDERS, BILLS):
        penstock.create_topic(connection, topic, create_namespaces=True)
    stream.subscribe(connection, SUBSCRIPTION, [ORDERS])
    return connection


def attempts(own: Any) -> int:
    """The setting that most tests set, as it is in force."""
    return subscription_policy(own, SUBSCRIPTION).max_attempts


def retry(own: Any, max_attempts: int, where: dict[str, str]) -> int:
    """Set it."""
    return set_policy(own, "retry", {"max_attempts": max_attempts}, **where)


def source(own: Any, setting: str, where: dict[str, str]) -> tuple[Any, ...]:
    """Where a setting comes from."""
    (found,) = [each for each in policy_of(own, **where) if each.setting == setting]
    return found.value, found.source, found.source_name, found.version, found.origin


def in_thread(db: ContractDatabase, call: Callable[[Any], object]) -> threading.Thread:
    """A call on a connection of its own, which waits for a lock."""
    other = db.connect()
    thread = threading.Thread(target=call, args=(other,))
    thread.start()
    db.wait_until_blocked(other)
    return thread


def test_presets_and_bounds_are_those_of_the_program(db: ContractDatabase, own: Any) -> None:
    """Both sides refuse the same; the presets are what a subscription begins with."""
    rows = db.run("SELECT kind, setting, type, lowest, highest FROM penstock.policy_settings")
    assert {(kind, name): limits for kind, name, *limits in rows} == {
        (kind, name): ["word", None, None]
        if each.words
        else ["count" if each.range.is_whole else "number", each.range.lowest, each.range.highest]
        for kind, settings in SETTINGS.items()
        for name, each in settings.items()
    }
    presets = {
        (kind, name): each.preset
        for kind, settings in SETTINGS.items()
        for name, each in settings.items()
    }
    found = policy_of(own)
    assert {(each.kind, each.setting): each.value for each in found} == presets
    assert {(each.source, each.version, each.origin) for each in found} == {("preset", 0, None)}
    begun = subscription_policy(own, SUBSCRIPTION)
    of_consumers = {name: value for (kind, name), value in presets.items() if kind != "keep"}
    assert {name: getattr(begun, name) for name in of_consumers} == of_consumers


def test_the_nearest_one_counts(own: Any) -> None:
    """Global, namespace, the namespace in it, topic, subscription; cleared, the next one again."""
    order = [GLOBAL, SHOP, EU, TOPIC, OWN]
    versions = []
    for number, where in enumerate(order, 2):
        assert retry(own, number, where) == 1
        assert attempts(own) == number
        versions.append(subscription_policy(own, SUBSCRIPTION).version)
    assert versions == sorted(set(versions))
    assert source(own, "max_attempts", OWN) == (6, "subscription", SUBSCRIPTION, 1, "hand")
    assert source(own, "max_attempts", TOPIC) == (5, "topic", ORDERS, 1, "hand")
    assert source(own, "max_attempts", OTHER) == (3, "namespace", "shop", 1, "hand")
    assert source(own, "jitter", OWN) == (0.5, "preset", "", 0, None)
    retry(own, 99, OTHER)  # which the subscription does not read
    for number, where in reversed(list(enumerate(order, 2))):
        assert attempts(own) == number
        assert clear_policy(own, "retry", **where) == 2
    assert attempts(own) == 10


def test_each_setting_is_inherited_by_itself(own: Any) -> None:
    """A policy that names one setting hides no other one."""
    set_policy(own, "retry", {"max_attempts": 3, "exhausted": "park_key"}, **SHOP)
    set_policy(own, "retry", {"jitter": 0.25}, **OWN)
    found = subscription_policy(own, SUBSCRIPTION)
    assert (found.max_attempts, found.exhausted, found.jitter) == (3, "park_key", 0.25)
    assert (found.first_backoff_seconds, found.longest_backoff_seconds) == (0.1, 60)


def test_of_several_topics_the_one_read_longest_counts(own: Any) -> None:
    """Whatever the order of their names; a nearer scope of the other one comes first."""
    retry(own, 4, TOPIC)
    retry(own, 5, OTHER)
    stream.subscribe(own, SUBSCRIPTION, [BILLS])
    assert attempts(own) == 4
    clear_policy(own, "retry", **TOPIC)
    retry(own, 6, EU)
    assert attempts(own) == 5


def test_what_moves_inherits_from_its_new_place(own: Any) -> None:
    """Topics, namespaces, subscriptions to more of them, and topics that go."""
    penstock.create_namespace(own, "farm")
    retry(own, 3, {"scope": "namespace", "name": "farm"})
    penstock.move_topic(own, ORDERS, "farm")
    assert attempts(own) == 3
    penstock.move_topic(own, "farm/orders", "shop/eu")
    assert attempts(own) == 10
    penstock.move_namespace(own, "shop/eu", "farm")
    assert attempts(own) == 3
    penstock.delete_topic(own, "farm/eu/orders", with_subscriptions=True)
    assert attempts(own) == 10
    retry(own, 7, OTHER)
    stream.subscribe(own, SUBSCRIPTION, [BILLS])
    assert attempts(own) == 7


def test_what_is_deleted_leaves_no_policy(db: ContractDatabase, own: Any) -> None:
    """And who takes its name begins anew."""
    for where in (SHOP, EU, TOPIC, OWN):
        retry(own, 3, where)
    stream.unsubscribe(own, SUBSCRIPTION)
    penstock.delete_namespace(own, "shop", with_topics=True)
    assert (count(db, "policies"), count(db, "policy_versions")) == (0, 0)


def test_configured_times_are_the_subscription_s_own_policy(own: Any) -> None:
    """One way: what configure_subscription sets is set by the policy, and the rest of it stays."""
    set_policy(own, "heartbeat", {"target_qps": 5}, **OWN)
    stream.configure_subscription(own, SUBSCRIPTION, heartbeat_seconds=1, lease_seconds=4)
    member = stream.join(own, SUBSCRIPTION, "a")
    assert (member.heartbeat_seconds, member.lease_seconds) == (1, 4)
    stream.configure_subscription(own, SUBSCRIPTION, heartbeat_seconds=1, lease_seconds=4)
    (policy,) = policies.list_policies(own)
    assert (policy.version, policy.origin) == (2, "hand")
    assert policy.settings == {
        "heartbeat_seconds": 1, "lease_seconds": 4, "release_seconds": 10, "target_qps": 5,
    }  # fmt: skip
    clear_policy(own, "heartbeat", **OWN)
    member = stream.join(own, SUBSCRIPTION, "b")
    assert (member.heartbeat_seconds, member.lease_seconds) == (3, 10)


def test_history_has_every_version(own: Any) -> None:
    """In order, with who set it; what changes nothing makes none."""
    assert [retry(own, number, TOPIC) for number in (3, 4, 4, 3)] == [1, 2, 2, 3]
    assert set_policy(own, "retry", {"max_attempts": 9}, **TOPIC, origin="file") == 4
    assert clear_policy(own, "retry", **TOPIC) == 5
    assert clear_policy(own, "retry", **TOPIC) == 5
    assert clear_policy(own, "lease", **TOPIC) == 0
    found = policies.policy_history(own, "retry", **TOPIC)
    assert [(each.version, each.settings.get("max_attempts")) for each in found] == [
        (1, 3), (2, 4), (3, 3), (4, 9), (5, None),
    ]  # fmt: skip
    assert [each.origin for each in found] == ["hand", "hand", "hand", "file", "hand"]
    assert all(each.updated_by for each in found)
    assert policies.policy_history(own, "lease", **TOPIC) == []
    assert policies.list_policies(own) == []


def change_twice(db: ContractDatabase, own: Any) -> None:
    """Two changes of one policy; the second is what was in force before the first."""
    retry(own, 3, OWN)
    with open_transaction(db) as first:
        retry(first, 4, OWN)
        other = db.connect()
        thread = threading.Thread(target=retry, args=(other, 3, OWN))
        thread.start()
        db.wait_until_blocked(other)
        first.commit()
        thread.join(30)


@proves("policies are inherited")
def test_versions_grow_one_behind_the_other(db: ContractDatabase, own: Any) -> None:
    """Two connections: the later change wins, and no version is lost or taken twice."""
    change_twice(db, own)
    found = policies.policy_history(own, "retry", **OWN)
    assert [(each.version, each.settings) for each in found] == [
        (1, {"max_attempts": 3}),
        (2, {"max_attempts": 4}),
        (3, {"max_attempts": 3}),
    ]
    assert attempts(own) == 3


@proves("policies are inherited", guard="the lock of the scope")
def test_guard_a_change_looks_behind_its_lock(db: ContractDatabase, own: Any) -> None:
    """Guard: the lock of the scope. Without it the second change finds nothing to do."""
    without(db, LOCKS_SCOPE)
    retry(own, 3, OWN)
    with open_transaction(db) as first:
        retry(first, 4, OWN)
        retry(own, 3, OWN)
        first.commit()
    assert attempts(own) == 4


def change_two_sources(db: ContractDatabase, own: Any) -> int:
    """Two policies that one subscription inherits are changed at once."""
    stream.subscribe(own, SUBSCRIPTION, [BILLS])
    with open_transaction(db) as first:
        retry(first, 4, TOPIC)
        jitter = {"jitter": 0.125}
        thread = in_thread(db, lambda other: set_policy(other, "retry", jitter, **OTHER))
        first.commit()
        thread.join(30)
    assert subscription_policy(own, SUBSCRIPTION).jitter == 0.125
    return attempts(own)


@proves("policies are inherited")
def test_two_changes_reach_the_subscription_that_inherits_both(
    db: ContractDatabase, own: Any
) -> None:
    """Its row is locked before what is in force is looked up."""
    assert change_two_sources(db, own) == 4


@proves("policies are inherited", guard="the lock of a subscription")
def test_guard_the_row_is_locked_before_the_look(db: ContractDatabase, own: Any) -> None:
    """Guard: the lock in refresh_policy. Without it the second change takes the first one back."""
    without(db, LOCKS_READERS)
    assert change_two_sources(db, own) == 10


def subscribe_meanwhile(db: ContractDatabase, own: Any, *, blocks: bool) -> int:
    """A new subscription of a topic whose namespace gets a policy before it commits."""
    with open_transaction(db) as subscriber:
        stream.subscribe(subscriber, "new", [BILLS])
        if blocks:
            thread = in_thread(db, lambda other: retry(other, 4, SHOP))
            subscriber.commit()
            thread.join(30)
        else:
            retry(own, 4, SHOP)
            subscriber.commit()
    return subscription_policy(own, "new").max_attempts


@proves("policies are inherited")
def test_a_subscription_under_way_is_not_passed_over(db: ContractDatabase, own: Any) -> None:
    """A change waits for it, because both lock the topic."""
    assert subscribe_meanwhile(db, own, blocks=True) == 4


@proves("policies are inherited", guard="the locks of topics")
def test_guard_topics_are_locked(db: ContractDatabase, own: Any) -> None:
    """Guard: the locks of all topics below. Without them the subscription keeps the old policy."""
    without(db, LOCKS_TOPICS)
    assert subscribe_meanwhile(db, own, blocks=False) == 10


def subscribe_and_change(db: ContractDatabase, own: Any) -> list[BaseException]:
    """Both at once, of one topic and one subscription, which somebody else holds for a moment."""
    with open_transaction(db) as checking_in, ThreadPoolExecutor(2) as pool:
        stream.check_in(checking_in, stream.join(checking_in, SUBSCRIPTION, "a"))
        calls: list[Future[object]] = []
        for call in (
            lambda other: stream.subscribe(other, SUBSCRIPTION, [ORDERS]),
            lambda other: retry(other, 4, TOPIC),
        ):
            other = db.connect()
            calls.append(pool.submit(call, other))
            db.wait_until_blocked(other)
        checking_in.commit()
        return [raised for each in calls if (raised := each.exception(30))]


@proves("policies are inherited")
def test_a_subscriber_and_a_change_do_not_meet_head_on(db: ContractDatabase, own: Any) -> None:
    """Both lock the topic, then the subscription."""
    assert subscribe_and_change(db, own) == []
    assert attempts(own) == 4


@proves("policies are inherited", guard="topics first")
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_guard_topics_come_before_the_subscription(
    db: ContractDatabase, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the topics that subscribe locks first. The other way round they deadlock.

    On MySQL one waits for the name of the subscription and one for its row, so here they do not.
    """
    monkeypatch.setattr(calls, "_TRIES", 1)  # else the call is made again, and passes
    db.without_guard("subscribe", "PERFORM lock_topic(t.address, 'consume')", "PERFORM t.address")
    db.without_guard(
        "subscribe", "IN SELECT t.id", "IN SELECT (lock_topic(t.address, 'consume')).id"
    )
    (raised,) = subscribe_and_change(db, own)
    assert "deadlock" in str(raised).lower()


BAD = {
    "unknown setting": ("retry", {"attempts": 3}),
    "of another kind": ("lease", {"jitter": 0.5}),
    "with a blank": ("retry", {"jitter ": 0.5}),
    "too small": ("retry", {"max_attempts": 0}),
    "too large": ("retry", {"max_attempts": 1001}),
    "not whole": ("lease", {"max_consumers": 2.5}),
    "text": ("heartbeat", {"target_qps": "10"}),
    "boolean": ("heartbeat", {"target_qps": True}),
    "null": ("heartbeat", {"target_qps": None}),
    "list": ("retry", {"exhausted": ["park_key"]}),
    "unknown word": ("retry", {"exhausted": "drop"}),
    "two words": ("retry", {"exhausted": "dead_letter,park_key"}),
    "lease below three heartbeats": ("heartbeat", {"heartbeat_seconds": 4, "lease_seconds": 11}),
    "heartbeat without a lease": ("heartbeat", {"heartbeat_seconds": 1}),
    "lease without a heartbeat": ("heartbeat", {"lease_seconds": 60}),
    "longest below first": (
        "retry", {"first_backoff_seconds": 5, "longest_backoff_seconds": 4},
    ),
    "first without longest": ("retry", {"first_backoff_seconds": 5}),
    "unknown kind": ("retention", {"copies": 1}),
    "no object": ("retry", []),
}  # fmt: skip


def test_bad_settings_are_refused_before_anything_is_written(
    db: ContractDatabase, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the program, and by the database for who comes without it."""
    for case, (kind, settings) in BAD.items():
        with pytest.raises(InvalidArgument):
            set_policy(own, kind, settings, **SHOP)  # type: ignore[arg-type]
        with monkeypatch.context() as unchecked:
            unchecked.setattr(policies, "check", lambda _kind, given: given)
            with pytest.raises(InvalidArgument):
                set_policy(own, kind, settings, **SHOP)  # type: ignore[arg-type]
                pytest.fail(case)
    assert (count(db, "policies"), count(db, "policy_versions")) == (0, 0)
    assert subscription_policy(own, SUBSCRIPTION).version == 1


NOT_THERE: list[tuple[dict[str, str], type[PenstockError]]] = [
    ({"scope": "namespace", "name": "nobody"}, NamespaceNotFound),
    ({"scope": "topic", "name": "shop/nobody"}, TopicNotFound),
    ({"scope": "subscription", "name": "nobody"}, SubscriptionNotFound),
    ({"scope": "partition", "name": "0"}, InvalidArgument),
    ({"scope": "Topic", "name": ORDERS}, InvalidArgument),
    ({"scope": "topic ", "name": ORDERS}, InvalidArgument),
]


def test_what_is_not_there_has_no_policy(db: ContractDatabase, own: Any) -> None:
    """Typed, for every verb."""
    verbs: list[Callable[[dict[str, str]], object]] = [
        lambda where: retry(own, 3, where),
        lambda where: clear_policy(own, "retry", **where),
        lambda where: policy_of(own, **where),
        lambda where: policies.policy_history(own, "retry", **where),
    ]
    for where, error in NOT_THERE:
        for verb in verbs:
            with pytest.raises(error):
                verb(where)
    with pytest.raises(SubscriptionNotFound):
        subscription_policy(own, "nobody")
    with pytest.raises(InvalidArgument):
        set_policy(own, "retry", {"max_attempts": 3}, origin="nobody")
    assert count(db, "policies") == 0


def test_an_old_snapshot_is_refused(db: ContractDatabase, own: Any) -> None:
    """Guard: require_read_committed. It would not see what the locks protect."""
    other = db.connect()
    level = "TRANSACTION ISOLATION LEVEL REPEATABLE READ"
    of_session = "SESSION CHARACTERISTICS AS" if db.engine == "postgres" else "SESSION"
    database.execute(other, f"SET {of_session} {level}")
    with pytest.raises(WrongIsolation):
        retry(other, 3, OWN)
    with pytest.raises(WrongIsolation):
        stream.configure_subscription(other, SUBSCRIPTION)
