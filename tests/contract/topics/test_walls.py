"""Two tenants, a namespace each: neither reads, writes, moves or learns of the other's."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from ops.relay.block import resolve_block
from penstock import database, log, subscriptions
from penstock.database import sessions
from penstock.driver_errors import sqlstate_of
from penstock.errors import (
    AlreadyExists,
    InUse,
    InvalidArgument,
    NamespaceNotFound,
    PenstockError,
    SubscriptionNotFound,
    TopicNotFound,
)
from penstock.publishing import known_topics
from penstock.subscriptions import dead_letters, policies, stream
from penstock.topics import holds, rights
from tests.contract.databases import ContractDatabase
from tests.contract.failure_calls import FAILURES
from tests.contract.stream_kit import Guard, without
from tests.contract.tenants import (
    OPEN,
    OURS,
    THEIRS,
    Tenants,
    as_login,
    tenant,
)
from tests.contract.wall_calls import EPOCHS, IN_SQL, LISTS, STEERING, Call, member
from tests.contract.wall_guards import MUTANTS, PLACE, READ_KEEPS
from tests.kit.cleaning import clean_unread
from tests.kit.proof import proves

pytestmark = pytest.mark.usefixtures("neighbours")


@pytest.fixture
def us(tenants: Tenants) -> str:
    """A login with all verbs in our namespace."""
    return tenant(tenants, "ours")


@pytest.fixture
def they(tenants: Tenants) -> str:
    """The same in their namespace."""
    return tenant(tenants, "theirs")


def _topic(name: str, /, **binds: Any) -> Call:
    return lambda own, topic: database.call(own, name, topic=topic, **binds)


def _held(name: str, /, **binds: Any) -> Call:
    return lambda own, subscription: database.call(
        own, name, subscription=subscription, consumer="spy", **binds
    )


def _policy(scope: str) -> dict[str, Call]:
    settings = {"max_attempts": 3}
    return {
        "set_policy": lambda own, name: policies.set_policy(
            own, "retry", settings, scope=scope, name=name
        ),
        "policy_of": lambda own, name: policies.policy_of(own, scope=scope, name=name),
        "policy_history": lambda own, name: policies.policy_history(
            own, "retry", scope=scope, name=name
        ),
    }


_EVENT: dict[str, Any] = dict.fromkeys(
    ("key", "type", "content_type", "headers", "event_id", "partition", "not_before", "dedup_key")
)
_COPY = {"partition": 0, "log_epoch": 1, "target": "t"}
_BLOCK = {"partition_id": 1, "lease_epoch": 1}
_COUNTS = {"minimum_age_seconds": 0, "copies": 1, "max_bytes": 1}

#: Calls that name a topic; each refuses a hidden one as it refuses one that is not there.
BY_TOPIC: dict[str, Call] = {
    "publish": lambda own, topic: penstock.publish(own, topic, b"x"),
    "publish in SQL": _topic("publish", payload=b"x", strict=False, **_EVENT),
    **IN_SQL,
    "publish_batch": lambda own, topic: penstock.publish_batch(
        own, [penstock.Message(OPEN, b"x"), penstock.Message(topic, b"x")]
    ),
    "fetch": lambda own, topic: penstock.fetch(own, topic, 0, 1),
    "high_watermarks": _topic("high_watermarks"),
    "describe_topic": _topic("describe_topic"),
    "subscribe": lambda own, topic: stream.subscribe(own, "new", [OPEN, topic]),
    "position": lambda own, topic: stream.position(own, "open", topic),
    "seek": lambda own, topic: stream.seek(own, "open", topic, 0, "earliest"),
    "reset": lambda own, topic: stream.reset(own, "open", "earliest", topic=topic),
    "resolve_block": lambda own, topic: resolve_block(own, "open", topic, 0, was_sent=True),
    "join": lambda own, topic: stream.join(own, "open", "spy", topics=[topic]),
    "rename_topic": lambda own, topic: penstock.rename_topic(own, topic, "x"),
    "move_topic": lambda own, topic: penstock.move_topic(own, topic, "open"),
    "resize_topic": lambda own, topic: penstock.resize_topic(own, topic, 4),
    "delete_topic": lambda own, topic: penstock.delete_topic(own, topic, with_subscriptions=True),
    "set_retention": _topic("set_retention", origin="hand", targets=None, **_COUNTS),
    "set_backpressure": _topic("set_backpressure", max_events=1, max_bytes=None),
    "seal": _topic("seal", partition=0, max_events=10, max_age_seconds=0),
    **EPOCHS,
    "record_copy": _topic("record_copy", event_count=1, checksum="c", **PLACE, **_COPY),
    "forget_copy": _topic("forget_copy", reason="lost", **_COPY),
    **_policy("topic"),
}

#: Calls that name a namespace.
BY_NAMESPACE: dict[str, Call] = {
    "create_namespace": lambda own, path: penstock.create_namespace(own, f"{path}/x"),
    "create_topic": lambda own, path: penstock.create_topic(own, f"{path}/x"),
    "ensure_topic": lambda own, path: penstock.create_topic(own, f"{path}/x", if_not_exists=True),
    "rename_namespace": lambda own, path: penstock.rename_namespace(own, path, "x"),
    "move_namespace": lambda own, path: penstock.move_namespace(own, path, ""),
    "move under it": lambda own, path: penstock.move_namespace(own, "open", path),
    "move a topic into it": lambda own, path: penstock.move_topic(own, OPEN, path),
    "delete_namespace": lambda own, path: penstock.delete_namespace(own, path, with_topics=True),
    "grant_namespace": lambda own, path: penstock.grant_namespace(
        own, path, _somebody(own), "read"
    ),
    "revoke_namespace": lambda own, path: penstock.revoke_namespace(
        own, path, _somebody(own), "read"
    ),
    **_policy("namespace"),
}

#: Calls that name a subscription.
BY_SUBSCRIPTION: dict[str, Call] = {
    "join": lambda own, name: stream.join(own, name, "spy"),
    "heartbeat": lambda own, name: stream.heartbeat(own, member(name)),
    "check_in": lambda own, name: stream.check_in(own, member(name)),
    "poll": _held(
        "poll", partition_ids=[1], lease_epochs=[1], after=[0], max_events=1, max_each=None
    ),
    "commit": _held("commit", partition_ids=[1], lease_epochs=[1], positions=[1], after=[0]),
    "release": _held("release", partition_ids=[1], lease_epochs=[1]),
    "leave": lambda own, name: stream.leave(own, member(name)),
    "position": lambda own, name: stream.position(own, name, OPEN),
    "seek": lambda own, name: stream.seek(own, name, OPEN, 0, "latest"),
    "resolve_block": lambda own, name: resolve_block(own, name, OPEN, 0, was_sent=True),
    **STEERING,
    **_policy("subscription"),
    "subscription_policy": policies.subscription_policy,
    "configure_subscription": lambda own, name: stream.configure_subscription(own, name),
    "unsubscribe": lambda own, name: stream.unsubscribe(own, name),
    "open_block": _held("open_block", max_events=1, max_bytes=1, **_BLOCK),
    "relay_failure": _held(
        "relay_failure", block_id=1, error="", base_seconds=1, max_seconds=1, **_BLOCK
    ),
    "dead_letter": _held("dead_letter", sequence=1, reason="", **_BLOCK),
    **FAILURES,
}


def _somebody(own: Any) -> str:
    return "postgres" if database.dialect_of(own) == "postgres" else "root"


def _refusal(own: Any, call: Call, name: str) -> tuple[type[Exception], str]:
    known_topics.clear()  # A tenant's process does not know what the owner has published here.
    with pytest.raises(PenstockError) as refused:
        call(own, name)
    return type(refused.value), str(refused.value)


def _each_is_hidden(
    tenants: Tenants, us: str, calls: dict[str, Call], hidden: str, missing: str
) -> set[type[Exception]]:
    kinds = set()
    with as_login(tenants, us) as own:
        for name, call in calls.items():
            kind, words = _refusal(own, call, hidden)
            _, expected = _refusal(own, call, missing)
            assert words == expected.replace(missing, hidden), name
            kinds.add(kind)
    _nothing_happened(tenants)
    return kinds


@proves("S22")
def test_a_hidden_topic_is_as_one_that_is_not_there(tenants: Tenants, us: str, they: str) -> None:
    """Guard: has_right in every function that names a topic."""
    kinds = _each_is_hidden(tenants, us, BY_TOPIC, THEIRS, "nobody/orders")
    assert kinds == {TopicNotFound}


def test_a_hidden_namespace_is_as_one_that_is_not_there(
    tenants: Tenants, us: str, they: str
) -> None:
    """Guard: has_right in require_namespace, on MySQL in require_namespace."""
    kinds = _each_is_hidden(tenants, us, BY_NAMESPACE, "theirs", "nobody")
    assert kinds == {NamespaceNotFound}


def test_a_hidden_subscription_is_as_one_that_is_not_there(
    tenants: Tenants, us: str, they: str
) -> None:
    """Guard: reads_hidden in require_subscription, on MySQL in look_at_subscription."""
    kinds = _each_is_hidden(tenants, us, BY_SUBSCRIPTION, "theirs", "nobody")
    assert kinds == {SubscriptionNotFound}


def _nothing_happened(tenants: Tenants) -> None:
    log.sequence(tenants.owner)
    assert [event.payload for event in log.fetch(tenants.owner, THEIRS, 0, 1)] == [b"theirs/orders"]
    assert penstock.describe_topic(tenants.owner, THEIRS).subscriptions == 1
    assert [each.position for each in subscriptions.lag(tenants.owner, "theirs")] == [0]


def _learned(own: Any, partition_id: int) -> set[str]:
    """Everything of what lists answer that is about them."""
    block = {"partition_id": partition_id, "first_sequence": 1, "last_sequence": 1}
    call = "SELECT * FROM {}" if database.dialect_of(own) == "postgres" else "CALL {}"
    answers: list[Any] = [
        penstock.list_topics(own),
        penstock.list_topics(own, "theirs"),
        penstock.list_namespaces(own),
        subscriptions.lag(own),
        subscriptions.lag(own, "theirs"),
        *(each(own) for each in LISTS),
        rights.grants_of(own),
        policies.list_policies(own),
        database.call(own, "retention_of"),
        database.call(own, "retention_limits"),
        database.execute(own, call.format("penstock.held_leases('theirs', 'one')")),
        dead_letters.dead_letters(own, "theirs"),
        dead_letters.dead_letter(own, "theirs", 1),
        database.call(own, "take_overs", subscription="theirs"),
        database.call(own, "read_block", subscription="theirs", **block),
        database.call(own, "namespace_exists", path="theirs"),
    ]
    found = {str(number) for number, each in enumerate(answers) if "theirs" in str(each)}
    return (
        found
        | ({"exists"} if answers[-1] != [(False,)] else set())
        | ({"block"} if answers[-2] else set())
    )


def test_lists_do_not_tell_of_the_others(tenants: Tenants, us: str, they: str) -> None:
    """Guard: has_right in each list; read_block reads what the subscription does."""
    BY_TOPIC["set_retention"](tenants.owner, THEIRS)
    _policy("topic")["set_policy"](tenants.owner, THEIRS)
    holds.place_hold(tenants.owner, THEIRS, "case", "a claim")
    EPOCHS["begin_erasure"](tenants.owner, THEIRS)
    log.place_bookmark(tenants.owner, THEIRS, "theirs")
    _policy("namespace")["set_policy"](tenants.owner, "theirs")
    _policy("subscription")["set_policy"](tenants.owner, "theirs")
    (lease,) = stream.check_in(tenants.owner, stream.join(tenants.owner, "theirs", "one"))
    fence = {
        "consumer": "one",
        "partition_id": lease.partition_id,
        "lease_epoch": lease.lease_epoch,
    }
    letter = {"subscription": "theirs", "sequence": 1, "reason": "x", **fence}
    database.call(tenants.owner, "dead_letter", **letter)
    with as_login(tenants, they) as own:
        assert len(_learned(own, lease.partition_id)) >= 6
    with as_login(tenants, us) as own:
        assert _learned(own, lease.partition_id) == set()
        assert [each.address for each in penstock.list_topics(own)] == [OPEN, OURS]
        assert [each.path for each in penstock.list_namespaces(own)] == ["open", "ours"]
        assert {each.subscription for each in subscriptions.lag(own)} == {"open", "ours"}


@proves("S22", guard="each part of the wall")
@pytest.mark.parametrize("name", MUTANTS)
def test_without_the_guard_the_wall_is_open(
    db: ContractDatabase, tenants: Tenants, name: str
) -> None:
    """Mutants: each part of the wall is needed."""
    guards, attack = MUTANTS[name]
    login = tenants.tenant()
    db.without_guard(*guards["postgres" if db.engine == "postgres" else "mysql"])
    penstock.grant_namespace(tenants.owner, "theirs", tenants.somebody, "operate")
    penstock.create_topic(tenants.owner, "theirs/later")
    with as_login(tenants, login) as own:
        attack(own)


def test_a_subscription_of_the_others_cannot_be_added_to(
    tenants: Tenants, us: str, they: str
) -> None:
    """It would be hidden from them afterwards: their consumers would stop."""
    with as_login(tenants, us) as own, pytest.raises(AlreadyExists):
        stream.subscribe(own, "theirs", [OURS])
    with as_login(tenants, they) as own:
        stream.join(own, "theirs", "one")


#: What each verb lets do: (publish, fetch, subscribe, create a topic).
VERBS = {
    "publish": (True, False, False, False),
    "read": (False, True, False, False),
    "consume": (False, True, True, False),
    "operate": (True, True, True, True),
}


def test_each_verb_lets_do_what_it_says(tenants: Tenants, they: str) -> None:
    """Guard: has_right knows which verb includes which."""
    calls: tuple[Call, ...] = (
        lambda own, verb: penstock.publish(own, THEIRS, b"x"),
        lambda own, verb: penstock.fetch(own, THEIRS, 0, 1),
        lambda own, verb: stream.subscribe(own, f"new {verb}", [THEIRS]),
        lambda own, verb: penstock.create_topic(own, f"theirs/{verb}"),
    )
    for verb, allowed in VERBS.items():
        login = tenants.tenant()
        penstock.grant_namespace(tenants.owner, "theirs", login, verb)
        with as_login(tenants, login) as own:
            assert tuple(_may(call, own, verb) for call in calls) == allowed, verb
            assert THEIRS in {each.address for each in penstock.list_topics(own)}


def _may(call: Call, own: Any, verb: str) -> bool:
    known_topics.clear()
    try:
        call(own, verb)
    except (TopicNotFound, NamespaceNotFound):
        return False
    return True


#: What changes how a log is kept, so that a right to read it is not enough.
KEEPING = (*READ_KEEPS, "set_retention", "set_backpressure", "set_policy")


def test_who_may_read_a_log_may_not_keep_it(
    db: ContractDatabase, tenants: Tenants, us: str, they: str
) -> None:
    """Guard: seal, clean and its run, record_copy and forget_copy ask for operate."""
    for verb in ("read", "consume", "publish"):
        penstock.grant_namespace(tenants.owner, "theirs", us, verb)
    with as_login(tenants, us) as own:
        assert penstock.fetch(own, THEIRS, 0, 1)
        for name in KEEPING:
            assert _refusal(own, BY_TOPIC[name], THEIRS)[0] is TopicNotFound, name
    _nothing_happened(tenants)
    with as_login(tenants, they) as own:
        sealed: Any = BY_TOPIC["seal"](own, THEIRS)
        ((epoch, _, _, count, checksum),) = sealed
        copy = {**_COPY, "log_epoch": epoch, "event_count": count, "checksum": checksum}
        database.call(own, "record_copy", topic=THEIRS, **PLACE, **copy)
        for name in ("forget_copy", "set_retention"):
            BY_TOPIC[name](own, THEIRS)
        clean_unread(own, THEIRS)


def test_without_the_guard_a_reader_keeps_the_log(
    db: ContractDatabase, tenants: Tenants, they: str
) -> None:
    """Mutants of the same."""
    for function in READ_KEEPS:
        db.without_guard(function, "'operate'", "'read'")
    login = tenants.tenant()
    penstock.grant_namespace(tenants.owner, "theirs", login, "read")
    with as_login(tenants, login) as own:
        assert BY_TOPIC["seal"](own, THEIRS)
        assert clean_unread(own, THEIRS)


def test_rights_reach_down_and_go_with_a_move(tenants: Tenants, us: str, they: str) -> None:
    """Guard: restricted follows creation, move, grant and revocation."""
    owner = tenants.owner
    penstock.create_topic(owner, "theirs/a/b/c", create_namespaces=True)
    assert penstock.describe_topic(owner, "theirs/a/b/c").restricted
    with as_login(tenants, us) as own, as_login(tenants, they) as other:
        assert penstock.describe_topic(other, "theirs/a/b/c").restricted
        penstock.move_namespace(owner, "theirs/a/b", "open")
        assert not penstock.describe_topic(own, "open/b/c").restricted
        penstock.move_topic(owner, "open/b/c", "ours")
        assert penstock.describe_topic(own, "ours/c").restricted
        with pytest.raises(TopicNotFound):
            penstock.describe_topic(other, "ours/c")
        penstock.move_namespace(owner, "open", "theirs")
        with pytest.raises(TopicNotFound):
            penstock.fetch(own, "theirs/open/orders", 0, 1)
        penstock.rename_namespace(owner, "theirs", "renamed")
        assert penstock.fetch(other, "renamed/open/orders", 0, 1)
        penstock.rename_topic(owner, "renamed/open/orders", "bills")
        assert penstock.fetch(other, "renamed/open/bills", 0, 1)


def test_the_last_right_does_not_go_by_chance(tenants: Tenants, they: str) -> None:
    """Guard: revoke_namespace refuses to open a namespace to all unless it is told to."""
    owner = tenants.owner
    with pytest.raises(InUse, match="open to all"):
        rights.revoke_namespace(owner, "theirs", they, "operate")
    assert rights.revoke_namespace(owner, "theirs", tenants.somebody, "read") is False
    assert [grant.login for grant in rights.grants_of(owner, "theirs")] == [they]
    penstock.grant_namespace(owner, "theirs", "penstock_operator", "operate")
    penstock.grant_namespace(owner, "theirs", "penstock_operator", "operate")
    assert rights.revoke_namespace(owner, "theirs", they, "operate")
    with as_login(tenants, they) as own, pytest.raises(TopicNotFound):
        penstock.fetch(own, THEIRS, 0, 1)
    args = ("theirs", "penstock_operator", "operate")
    assert rights.revoke_namespace(owner, *args, unrestrict=True)
    with as_login(tenants, they) as own:
        assert penstock.fetch(own, THEIRS, 0, 1)
    assert not penstock.describe_topic(owner, THEIRS).restricted


def test_rights_go_with_their_namespace(tenants: Tenants, us: str, they: str) -> None:
    """A namespace that is made anew under the same name is open."""
    stream.unsubscribe(tenants.owner, "theirs")
    penstock.delete_namespace(tenants.owner, "theirs", with_topics=True)
    assert [each.namespace for each in rights.grants_of(tenants.owner)] == ["ours"]
    penstock.create_topic(tenants.owner, THEIRS, create_namespaces=True)
    with as_login(tenants, us) as own:
        penstock.publish(own, THEIRS, b"x")


def test_rights_are_given_to_who_is_there(db: ContractDatabase, tenants: Tenants) -> None:
    if db.engine != "mariadb":  # It has no way to ask that leaves the transaction its savepoints.
        with pytest.raises(InvalidArgument, match="no role"):
            penstock.grant_namespace(tenants.owner, "ours", "nobody at all", "read")
    with pytest.raises(InvalidArgument, match="no role"):
        penstock.grant_namespace(tenants.owner, "ours", "", "read")
    call = "SELECT penstock" if db.engine == "postgres" else "CALL penstock"
    for verb in ("", "READ", "all", None):
        with pytest.raises(InvalidArgument, match="no right"):
            penstock.grant_namespace(tenants.owner, "ours", tenants.somebody, verb)  # type: ignore[arg-type]
        own = sessions.of_connection(tenants.owner).transaction(tenants.owner)
        with pytest.raises(Exception, match="no right") as refused, own:
            asked = f"{call}.grant_namespace('ours', %(login)s, %(verb)s)"
            database.execute(tenants.owner, asked, {"login": tenants.somebody, "verb": verb})
        assert isinstance(refused.value, InvalidArgument) or sqlstate_of(refused.value) == "PS006"


def test_who_passes_all_walls(tenants: Tenants, us: str, they: str) -> None:
    """Operators do, installers for rights only, members of other roles do not."""
    with as_login(tenants, tenants.login("operator")) as operator:
        assert penstock.fetch(operator, THEIRS, 0, 1)
    with as_login(tenants, tenants.login("installer")) as installer:
        assert len(rights.grants_of(installer)) == 2
        penstock.grant_namespace(installer, "theirs", us, "read")
    with as_login(tenants, us) as own:
        assert penstock.fetch(own, THEIRS, 0, 1)
    for kinds in ("consumer", "publisher consumer reader installer"):
        with as_login(tenants, tenants.login(kinds)) as outsider, pytest.raises(TopicNotFound):
            penstock.fetch(outsider, THEIRS, 0, 1)


#: Without it every tenant that may set policies at all sets them for everybody.
FOR_EVERYBODY: Guard = {
    "postgres": ("lock_policy_scope", "IF NOT passes_walls('operate') THEN", "IF false THEN"),
    "mysql": ("lock_policy_scope", "IF NOT may_all THEN", "IF FALSE THEN"),
}


@proves("a policy for everything")
def test_a_policy_for_everything_is_the_operators_own(
    db: ContractDatabase, tenants: Tenants, us: str
) -> None:
    """Guard: passes_walls in lock_policy_scope."""
    call = _policy("global")["set_policy"]
    with as_login(tenants, us) as own:
        with pytest.raises(InvalidArgument, match="all namespaces"):
            call(own, "")
        assert _policy("namespace")["set_policy"](own, "ours") == 1
        assert _policy("global")["policy_of"](own, "")
    with as_login(tenants, tenants.login("operator")) as operator:
        assert call(operator, "") == 1
        assert policies.clear_policy(operator, "retry") == 2
    without(db, FOR_EVERYBODY)
    with as_login(tenants, us) as own:
        assert call(own, "") == 3


def test_members_of_a_role_hold_its_rights(tenants: Tenants, us: str) -> None:
    """Also through another role, and only as long as they are in it."""
    outer, inner = tenants.role(), tenants.role()
    penstock.grant_namespace(tenants.owner, "theirs", outer, "read")
    tenants.give_role(outer, inner)
    with as_login(tenants, us) as own:
        with pytest.raises(TopicNotFound):
            penstock.fetch(own, THEIRS, 0, 1)
        tenants.give_role(inner, us)
        assert penstock.fetch(own, THEIRS, 0, 1)
        with pytest.raises(TopicNotFound):
            penstock.publish(own, THEIRS, b"x")
        tenants.take_role(outer, inner)
        with pytest.raises(TopicNotFound):
            penstock.fetch(own, THEIRS, 0, 1)
