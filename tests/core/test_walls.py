"""Two tenants, each in a namespace of its own: neither reads, writes, moves or learns of the other.

What is hidden and what is not there are refused in the same words.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

import penstock
from penstock import database, log, rights, stream, topic_cache
from penstock.errors import (
    AlreadyExists,
    InUse,
    InvalidArgument,
    NamespaceNotFound,
    PenstockError,
    SubscriptionNotFound,
    TopicNotFound,
)
from tests.core.tenants import (
    OPEN,
    OURS,
    THEIRS,
    Connection,
    Tenants,
    bulk,
    tenant,
    three_topics,
)
from tests.guards import without_guard


@pytest.fixture
def tenants(connection: Connection, database_url: str) -> Iterator[Tenants]:
    """A topic for us, one for them and an open one."""
    with three_topics(connection, database_url) as found:
        yield found


@pytest.fixture
def us(tenants: Tenants) -> str:
    """A login with all verbs in our namespace."""
    return tenant(tenants, "ours")


@pytest.fixture
def they(tenants: Tenants) -> str:
    """The same in their namespace."""
    return tenant(tenants, "theirs")


Call = Callable[[Connection, str], object]


def _sql(text: str, *binds: Any) -> Callable[[Connection], object]:
    return lambda own: database.execute(
        own, f"SELECT * FROM penstock.{text}", {str(n): bind for n, bind in enumerate(binds)}
    )


#: Calls that name a topic; each refuses a hidden one as it refuses one that is not there.
BY_TOPIC: dict[str, Call] = {
    "publish": lambda own, topic: penstock.publish(own, topic, b"x"),
    "publish in SQL": lambda own, topic: _sql("publish(%(0)s, 'x')", topic)(own),
    "publish_batch": lambda own, topic: _sql(
        "publish_batch(ARRAY[%(0)s], ARRAY['x'::bytea], ARRAY[NULL], ARRAY[''], ARRAY[NULL],"
        " ARRAY[NULL], ARRAY[NULL::uuid], ARRAY[NULL::int])",
        topic,
    )(own),
    "publish_bulk": lambda own, topic: bulk(own, topic),
    "fetch": lambda own, topic: penstock.fetch(own, topic, 0, 1),
    "high_watermarks": lambda own, topic: log.high_watermarks(own, topic),
    "describe_topic": lambda own, topic: penstock.describe_topic(own, topic),
    "subscribe": lambda own, topic: stream.subscribe(own, "new", [OPEN, topic]),
    "position": lambda own, topic: stream.position(own, "open", topic),
    "seek": lambda own, topic: stream.seek(own, "open", topic, 0, "earliest"),
    "rename_topic": lambda own, topic: penstock.rename_topic(own, topic, "x"),
    "move_topic": lambda own, topic: penstock.move_topic(own, topic, "open"),
    "resize_topic": lambda own, topic: penstock.resize_topic(own, topic, 4),
    "delete_topic": lambda own, topic: penstock.delete_topic(own, topic, with_subscriptions=True),
    "set_retention": lambda own, topic: _sql("set_retention(%(0)s, 0)", topic)(own),
    "seal": lambda own, topic: _sql("seal(%(0)s, 0)", topic)(own),
    "clean": lambda own, topic: _sql("clean(%(0)s)", topic)(own),
    "sequence_gaps": lambda own, topic: _sql("sequence_gaps(%(0)s)", topic)(own),
    "copies_of": lambda own, topic: _sql("copies_of(%(0)s)", topic)(own),
    "log_epochs_of": lambda own, topic: _sql("log_epochs_of(%(0)s)", topic)(own),
    "record_copy": lambda own, topic: _sql(
        "record_copy(%(0)s, 0, 1, 't', 'l', 1::bigint, 'c')", topic
    )(own),
}

#: Calls that name a namespace.
BY_NAMESPACE: dict[str, Call] = {
    "create_namespace": lambda own, path: penstock.create_namespace(own, f"{path}/x"),
    "create_topic": lambda own, path: penstock.create_topic(own, f"{path}/x"),
    "rename_namespace": lambda own, path: penstock.rename_namespace(own, path, "x"),
    "move_namespace": lambda own, path: penstock.move_namespace(own, path, ""),
    "move under it": lambda own, path: penstock.move_namespace(own, "open", path),
    "move a topic into it": lambda own, path: penstock.move_topic(own, OPEN, path),
    "delete_namespace": lambda own, path: penstock.delete_namespace(own, path, with_topics=True),
    "grant_namespace": lambda own, path: penstock.grant_namespace(own, path, "postgres", "read"),
    "revoke_namespace": lambda own, path: penstock.revoke_namespace(own, path, "postgres", "read"),
}

#: Calls that name a subscription.
BY_SUBSCRIPTION: dict[str, Call] = {
    "join": lambda own, name: stream.join(own, name, "spy"),
    "heartbeat": lambda own, name: stream.heartbeat(own, _member(name)),
    "check_in": lambda own, name: stream.check_in(own, _member(name)),
    "poll": lambda own, name: _sql(
        "poll(%(0)s, 'spy', '{1}'::bigint[], '{1}'::bigint[], '{0}'::bigint[])", name
    )(own),
    "commit": lambda own, name: _sql(
        "commit(%(0)s, 'spy', '{1}'::bigint[], '{1}'::bigint[], '{1}'::bigint[])", name
    )(own),
    "release": lambda own, name: _sql(
        "release(%(0)s, 'spy', '{1}'::bigint[], '{1}'::bigint[])", name
    )(own),
    "leave": lambda own, name: stream.leave(own, _member(name)),
    "position": lambda own, name: stream.position(own, name, OPEN),
    "seek": lambda own, name: stream.seek(own, name, OPEN, 0, "latest"),
    "configure_subscription": lambda own, name: stream.configure_subscription(own, name),
    "unsubscribe": lambda own, name: stream.unsubscribe(own, name),
    "open_block": lambda own, name: _sql("open_block(%(0)s, 'spy', 1, 1, 1, 1)", name)(own),
    "relay_failure": lambda own, name: _sql("relay_failure(%(0)s, 'spy', 1, 1, 1, '')", name)(own),
    "dead_letter": lambda own, name: _sql("dead_letter(%(0)s, 'spy', 1, 1, 1, '')", name)(own),
}


def _member(subscription: str) -> stream.Membership:
    return stream.Membership(subscription, "spy", uuid.UUID(int=1), 1, 3)


def _refusal(own: Connection, call: Call, name: str) -> tuple[type[Exception], str]:
    topic_cache.clear()  # A tenant's process does not know what the owner has published here.
    with pytest.raises(PenstockError) as refused, own.transaction():
        call(own, name)
    return type(refused.value), str(refused.value)


def test_a_hidden_topic_is_as_one_that_is_not_there(
    tenants: Tenants, us: str, they: str, subtests: pytest.Subtests
) -> None:
    """Guard: has_right in require_topic_for, lock_topic, topic_lookup and the publish functions."""
    with tenants.as_login(us) as own:
        for name, call in BY_TOPIC.items():
            with subtests.test(name):
                kind, hidden = _refusal(own, call, THEIRS)
                _, missing = _refusal(own, call, "nobody/orders")
                assert kind is TopicNotFound
                assert hidden == missing.replace("nobody/orders", THEIRS)
                _nothing_happened(tenants)


def test_a_hidden_namespace_is_as_one_that_is_not_there(
    tenants: Tenants, us: str, they: str, subtests: pytest.Subtests
) -> None:
    """Guard: has_right in require_namespace."""
    with tenants.as_login(us) as own:
        for name, call in BY_NAMESPACE.items():
            with subtests.test(name):
                kind, hidden = _refusal(own, call, "theirs")
                _, missing = _refusal(own, call, "nobody")
                assert kind is NamespaceNotFound
                assert hidden == missing.replace("nobody", "theirs")
                _nothing_happened(tenants)


def test_a_hidden_subscription_is_as_one_that_is_not_there(
    tenants: Tenants, us: str, they: str, subtests: pytest.Subtests
) -> None:
    """Guard: reads_hidden in require_subscription."""
    with tenants.as_login(us) as own:
        for name, call in BY_SUBSCRIPTION.items():
            with subtests.test(name):
                kind, hidden = _refusal(own, call, "theirs")
                _, missing = _refusal(own, call, "nobody")
                assert kind is SubscriptionNotFound
                assert hidden == missing.replace("nobody", "theirs")
                _nothing_happened(tenants)


def _nothing_happened(tenants: Tenants) -> None:
    log.sequence(tenants.owner)
    assert [event.payload for event in log.fetch(tenants.owner, THEIRS, 0, 1)] == [b"theirs/orders"]
    assert penstock.describe_topic(tenants.owner, THEIRS).subscriptions == 1
    assert [each.position for each in stream.lag(tenants.owner, "theirs")] == [0]


def _learned(own: Connection) -> set[str]:
    """Everything of what lists answer that is about them."""
    block = "read_block('theirs', (SELECT 2 << 16), 1, 1)"
    answers = [
        penstock.list_topics(own),
        penstock.list_topics(own, "theirs"),
        penstock.list_namespaces(own),
        stream.lag(own),
        stream.lag(own, "theirs"),
        rights.grants_of(own),
        _sql("retention_of()")(own),
        _sql("held_leases('theirs', 'one')")(own),
        _sql("dead_letters_of('theirs')")(own),
        _sql(block)(own),
        _sql("namespace_exists('theirs')")(own),
    ]
    return (
        {str(number) for number, each in enumerate(answers) if "theirs" in str(each)}
        | ({"exists"} if "True" in str(answers[-1]) else set())
        | ({"block"} if answers[-2] else set())
    )


def test_lists_do_not_tell_of_the_others(tenants: Tenants, us: str, they: str) -> None:
    """Guard: has_right in each list; read_block reads what the subscription does."""
    _sql("set_retention('theirs/orders', 0)")(tenants.owner)
    member = stream.join(tenants.owner, "theirs", "one")
    (lease,) = stream.check_in(tenants.owner, member)
    _sql(
        "dead_letter('theirs', 'one', %(0)s, %(1)s, 1, 'x')", lease.partition_id, lease.lease_epoch
    )(tenants.owner)
    assert lease.partition_id == 2 << 16
    with tenants.as_login(us) as own:
        assert _learned(own) == set()
        assert [each.address for each in penstock.list_topics(own)] == [OPEN, OURS]
        assert [each.path for each in penstock.list_namespaces(own)] == ["open", "ours"]
        assert {each.subscription for each in stream.lag(own)} == {"open", "ours"}
    with tenants.as_login(they) as own:
        assert len(_learned(own)) >= 6


#: A guard, what the mutant has there, and the attack that then gets through.
MUTANTS: dict[str, tuple[str, str, str, Callable[[Connection], object]]] = {
    "identity": (
        "passes_walls",
        "pg_has_role(session_user, n.nspowner, 'MEMBER')",
        "pg_has_role(current_user, n.nspowner, 'MEMBER')",
        lambda own: penstock.fetch(own, THEIRS, 0, 1),
    ),
    "membership": (
        "has_right",
        "AND pg_has_role(session_user, to_regrole(quote_ident(g.login)), 'MEMBER')",
        "",
        lambda own: penstock.fetch(own, THEIRS, 0, 1),
    ),
    "lookup": (
        "require_topic_for",
        "NOT t.restricted OR",
        "true OR",
        lambda own: penstock.fetch(own, THEIRS, 0, 1),
    ),
    "lock": (
        "lock_topic",
        "NOT t.restricted OR",
        "true OR",
        lambda own: stream.subscribe(own, "new", [THEIRS]),
    ),
    "namespace": (
        "require_namespace",
        "AND has_right(n.id, verb)",
        "",
        lambda own: penstock.create_topic(own, "theirs/x"),
    ),
    "subscription": (
        "require_subscription",
        "AND reads_hidden(found_row.id)",
        "AND false",
        lambda own: stream.unsubscribe(own, "theirs"),
    ),
    "restricted": (
        "refresh_restricted",
        "UPDATE topics AS t SET restricted = n.restricted",
        "UPDATE topics AS t SET restricted = false",
        lambda own: penstock.fetch(own, THEIRS, 0, 1),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_without_the_guard_the_wall_is_open(tenants: Tenants, name: str) -> None:
    """Mutants: each part of the wall is needed."""
    function, old, new, attack = MUTANTS[name]
    us = tenant(tenants, "ours")
    with tenants.as_login(us) as own:
        without_guard(tenants.owner, function, old, new)
        tenant(tenants, "theirs")
        attack(own)


def test_a_subscription_of_the_others_cannot_be_added_to(
    tenants: Tenants, us: str, they: str
) -> None:
    """It would be hidden from them afterwards: their consumers would stop."""
    with tenants.as_login(us) as own, pytest.raises(AlreadyExists):
        stream.subscribe(own, "theirs", [OURS])
    with tenants.as_login(they) as own:
        stream.join(own, "theirs", "one")


#: What each verb lets do: (publish, fetch, subscribe, create a topic).
VERBS = {
    "publish": (True, False, False, False),
    "read": (False, True, False, False),
    "consume": (False, True, True, False),
    "operate": (True, True, True, True),
}


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_lets_do_what_it_says(tenants: Tenants, they: str, verb: str) -> None:
    login = tenant(tenants, "ours")
    penstock.grant_namespace(tenants.owner, "theirs", login, verb)
    calls: tuple[Callable[[Connection], object], ...] = (
        lambda own: penstock.publish(own, THEIRS, b"x"),
        lambda own: penstock.fetch(own, THEIRS, 0, 1),
        lambda own: stream.subscribe(own, "new", [THEIRS]),
        lambda own: penstock.create_topic(own, "theirs/new"),
    )
    found = []
    with tenants.as_login(login) as own:
        for call in calls:
            try:
                call(own)
            except (TopicNotFound, NamespaceNotFound):
                found.append(False)
            else:
                found.append(True)
        assert THEIRS in {each.address for each in penstock.list_topics(own)}
    assert tuple(found) == VERBS[verb]


def test_rights_reach_down_and_go_with_a_move(tenants: Tenants, us: str, they: str) -> None:
    """Guard: restricted follows creation, move, grant and revocation."""
    owner = tenants.owner
    penstock.create_topic(owner, "theirs/a/b/c", create_namespaces=True)
    assert penstock.describe_topic(owner, "theirs/a/b/c").restricted
    with tenants.as_login(us) as own, tenants.as_login(they) as other:
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


def test_the_last_right_does_not_go_by_chance(tenants: Tenants, they: str) -> None:
    """Guard: revoke_namespace refuses to open a namespace to all unless it is told to."""
    owner = tenants.owner
    with pytest.raises(InUse, match="open to all"):
        rights.revoke_namespace(owner, "theirs", they, "operate")
    assert rights.revoke_namespace(owner, "theirs", "postgres", "read") is False
    assert [grant.login for grant in rights.grants_of(owner, "theirs")] == [they]
    penstock.grant_namespace(owner, "theirs", "penstock_operator", "operate")
    penstock.grant_namespace(owner, "theirs", "penstock_operator", "operate")
    assert rights.revoke_namespace(owner, "theirs", they, "operate")
    with tenants.as_login(they) as own, pytest.raises(TopicNotFound):
        penstock.fetch(own, THEIRS, 0, 1)
    args = ("theirs", "penstock_operator", "operate")
    assert rights.revoke_namespace(owner, *args, unrestrict=True)
    with tenants.as_login(they) as own:
        assert penstock.fetch(own, THEIRS, 0, 1)
    assert not penstock.describe_topic(owner, THEIRS).restricted


def test_a_right_outlives_the_login_and_keeps_the_others_out(
    tenants: Tenants, us: str, they: str
) -> None:
    tenants.owner.execute(sql.SQL("DROP OWNED BY {0}").format(sql.Identifier(they)))
    tenants.owner.execute(sql.SQL("DROP ROLE {0}").format(sql.Identifier(they)))
    tenants.made.remove(they)
    with tenants.as_login(us) as own, pytest.raises(TopicNotFound):
        penstock.fetch(own, THEIRS, 0, 1)


def test_rights_are_given_to_who_is_there(tenants: Tenants) -> None:
    with pytest.raises(InvalidArgument, match="no role"):
        penstock.grant_namespace(tenants.owner, "ours", "nobody at all", "read")
    for verb in ("", "READ", "all", None):
        with pytest.raises(InvalidArgument, match="no right"):
            penstock.grant_namespace(tenants.owner, "ours", "postgres", verb)  # type: ignore[arg-type]
        with pytest.raises(psycopg.Error) as refused:
            tenants.owner.execute("SELECT penstock.grant_namespace('ours', 'postgres', %s)", [verb])
        assert refused.value.sqlstate == "PS006"


def test_who_passes_all_walls(tenants: Tenants, us: str, they: str) -> None:
    """Operators do, installers for rights only, members of other roles do not."""
    with tenants.as_login(tenants.login("operator")) as operator:
        assert penstock.fetch(operator, THEIRS, 0, 1)
    with tenants.as_login(tenants.login("installer")) as installer:
        assert len(rights.grants_of(installer)) == 2
        penstock.grant_namespace(installer, "theirs", us, "read")
    with tenants.as_login(us) as own:
        assert penstock.fetch(own, THEIRS, 0, 1)
    for kinds in ("consumer", "publisher consumer reader installer"):
        with tenants.as_login(tenants.login(kinds)) as outsider, pytest.raises(TopicNotFound):
            penstock.fetch(outsider, THEIRS, 0, 1)


def test_a_role_called_operator_passes_only_where_it_was_installed(
    tenants: Tenants, us: str, they: str
) -> None:
    """Guard: USAGE on the schema; roles are the whole cluster's, and so is who may make them."""
    tenants.owner.execute("REVOKE USAGE ON SCHEMA penstock FROM penstock_operator")
    login = tenants.login("operator consumer")
    with tenants.as_login(login) as outsider, pytest.raises(TopicNotFound):
        penstock.fetch(outsider, THEIRS, 0, 1)


def test_the_session_counts_not_the_role_that_it_has_set(
    tenants: Tenants, us: str, they: str
) -> None:
    """session_user: SET ROLE neither hides one's own topics nor shows the others'."""
    group = tenants.role()
    penstock.grant_namespace(tenants.owner, "theirs", group, "read")
    with tenants.as_login(us) as own:
        own.execute("SET ROLE penstock_consumer")
        assert penstock.fetch(own, OURS, 0, 1)
        with pytest.raises(TopicNotFound):
            penstock.fetch(own, THEIRS, 0, 1)
        own.execute("RESET ROLE")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            own.execute("SET ROLE penstock_operator")
        tenants.owner.execute(
            sql.SQL("GRANT {} TO {}").format(sql.Identifier(group), sql.Identifier(us))
        )
        assert penstock.fetch(own, THEIRS, 0, 1)


def test_an_open_topic_asks_for_no_right(tenants: Tenants, us: str, they: str) -> None:
    """Guard: restricted stands before has_right; a topic without rights must not pay for them."""
    without_guard(
        tenants.owner, "has_right", "SELECT count(*) = 0 OR", "SELECT 1 / count(*) / 0 = 0 OR"
    )
    with tenants.as_login(us) as own:
        penstock.publish(own, OPEN, b"x")
        assert penstock.fetch(own, OPEN, 0, 1)
        with pytest.raises(psycopg.errors.DivisionByZero):
            penstock.fetch(own, OURS, 0, 1)
