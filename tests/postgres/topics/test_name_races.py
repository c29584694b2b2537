"""Concurrent changes of names: no deadlock, no stale path, no orphan."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

import penstock
from penstock.errors import AlreadyExists, NamespaceNotFound, UsageError, WrongMode
from penstock.subscriptions import stream
from tests.guards import without_guard
from tests.kit.log import Connection, drain, open_transaction
from tests.kit.names import broken, meets

THREADS = 6
STEPS = 60
NAMES = ("a", "b")

#: An open change of names, and what another session does meanwhile, on the tree of `shop`.
RACES: dict[str, tuple[Callable[[Connection], Any], Callable[[Connection], Any]]] = {
    "a topic made in a subtree that is renamed": (
        lambda one: penstock.create_topic(one, "shop/orders/new"),
        lambda two: penstock.rename_namespace(two, "shop", "store"),
    ),
    "a namespace made in a subtree that is moved": (
        lambda one: penstock.create_namespace(one, "shop/orders/new"),
        lambda two: penstock.move_namespace(two, "shop", "other"),
    ),
    "a topic made in a namespace that is deleted": (
        lambda one: penstock.create_topic(one, "shop/orders/new"),
        lambda two: penstock.delete_namespace(two, "shop", with_topics=True),
    ),
    "two moves that would make a circle": (
        lambda one: penstock.move_namespace(one, "shop", "other"),
        lambda two: penstock.move_namespace(two, "other", "shop"),
    ),
    "a rename below a rename": (
        lambda one: penstock.rename_namespace(one, "shop", "store"),
        lambda two: penstock.rename_namespace(two, "shop/orders", "new"),
    ),
    "a topic moved into a namespace that is renamed": (
        lambda one: penstock.rename_namespace(one, "other", "store"),
        lambda two: penstock.move_topic(two, "shop/bills", "other"),
    ),
    "a right given in a subtree where a topic is made": (
        lambda one: penstock.create_topic(one, "shop/orders/new"),
        lambda two: penstock.grant_namespace(two, "shop", "pg_monitor", "read"),
    ),
}

NOT_ALONE = ("lock_names", "PERFORM FROM name_tree FOR UPDATE;", "NULL;")


def _race(connection: Connection, url: str, name: str) -> tuple[bool, Any, dict[str, Any]]:
    first, second = RACES[name]
    penstock.create_topic(connection, "shop/orders/old", create_namespaces=True)
    penstock.create_topic(connection, "shop/bills")
    penstock.create_namespace(connection, "other")
    with open_transaction(url) as one:
        first(one)
        waited, answer = meets(one.commit, connection, url, second)
    return waited, answer, broken(connection)


@pytest.mark.parametrize("name", RACES)
def test_the_second_waits_and_finds_what_the_first_left(
    connection: Connection, database_url: str, name: str
) -> None:
    """Guard: the lock of the tree."""
    waited, answer, found = _race(connection, database_url, name)
    assert waited
    assert found == {}
    assert not isinstance(answer, Exception) or isinstance(answer, UsageError)


@pytest.mark.parametrize(
    "name",
    [
        "a topic made in a subtree that is renamed",
        "a namespace made in a subtree that is moved",
        "a topic made in a namespace that is deleted",
        "two moves that would make a circle",
        "a topic moved into a namespace that is renamed",
        "a right given in a subtree where a topic is made",
    ],
)
def test_without_the_lock_the_tree_breaks(
    connection: Connection, database_url: str, name: str
) -> None:
    """Mutant: what rewrites the tree does not lock it."""
    without_guard(connection, *NOT_ALONE)
    _, _, found = _race(connection, database_url, name)
    assert found


def test_two_creates_do_not_wait_for_each_other(connection: Connection, database_url: str) -> None:
    """Guard: creates share the lock, so that an open one holds up no other tenant."""
    penstock.create_namespace(connection, "shop")
    with open_transaction(database_url) as one:
        penstock.create_topic(one, "shop/one")
        waited, _ = meets(
            one.commit, connection, database_url, lambda own: penstock.create_topic(own, "shop/two")
        )
    assert not waited
    with open_transaction(database_url) as one:
        penstock.create_topic(one, "shop/three")
        waited, answer = meets(
            one.commit,
            connection,
            database_url,
            lambda own: penstock.create_topic(own, "shop/three"),
        )
    assert waited
    assert isinstance(answer, AlreadyExists)


def test_publishers_wait_for_nothing(connection: Connection, database_url: str) -> None:
    """A rename that is not committed leaves the old address in force, for everybody else."""
    penstock.create_topic(connection, "shop/bills", create_namespaces=True)
    with open_transaction(database_url) as renaming:
        penstock.rename_namespace(renaming, "shop", "store")
        penstock.publish(connection, "shop/bills", b"1")
        penstock.publish(renaming, "store/bills", b"2")
        renaming.commit()
    with open_transaction(database_url) as publisher:
        penstock.publish(publisher, "store/bills", b"3")
        assert penstock.rename_topic(connection, "store/bills", "paid") == "store/paid"
        publisher.commit()
    drain(connection)
    events = penstock.fetch(connection, "store/paid", 0, 1)
    assert [event.payload for event in events] == [b"1", b"2", b"3"]


def _path(chance: random.Random) -> str:
    return "/".join(chance.choice(NAMES) for _ in range(chance.randrange(1, 3)))


def _step(connection: Connection, chance: random.Random) -> None:
    """One change, of anything."""
    path, other, name = _path(chance), _path(chance), chance.choice(NAMES)
    topic = f"{_path(chance)}/{name}"
    subscription = chance.choice("xyz")
    steps: list[Callable[[], object]] = [
        lambda: penstock.create_namespace(connection, path),
        lambda: penstock.rename_namespace(connection, path, name),
        lambda: penstock.move_namespace(connection, path, chance.choice([other, ""])),
        lambda: penstock.delete_namespace(connection, path, with_topics=True),
        lambda: penstock.create_topic(connection, topic, 2, create_namespaces=True),
        lambda: penstock.rename_topic(connection, topic, chance.choice(NAMES)),
        lambda: penstock.move_topic(connection, topic, other),
        lambda: penstock.resize_topic(connection, topic, chance.randrange(2, 6)),
        lambda: penstock.delete_topic(connection, topic, with_subscriptions=True),
        lambda: stream.subscribe(connection, subscription, [topic, f"{other}/a"]),
        lambda: stream.subscribe(connection, subscription, [topic]),
        lambda: stream.unsubscribe(connection, subscription),
        lambda: connection.execute("SELECT penstock.set_retention(%s, 0)", [topic]),
        lambda: penstock.publish(connection, topic, b"x"),
        lambda: penstock.sequence(connection),
        lambda: penstock.grant_namespace(connection, path, "pg_monitor", "read"),
        lambda: penstock.revoke_namespace(connection, path, "pg_monitor", "read", unrestrict=True),
    ]
    chance.choice(steps)()


def _work(url: str, seed: int) -> Counter[str]:
    """Many steps; which errors there were, by SQLSTATE."""
    chance = random.Random(seed)
    met: Counter[str] = Counter()
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(STEPS):
            try:
                _step(connection, chance)
                met["done"] += 1
            except UsageError as error:
                met[str(error.sqlstate)] += 1
            except psycopg.Error as error:
                met[str(error.sqlstate)] += 1
    return met


@pytest.mark.parametrize("seed", range(3))
def test_all_of_it_at_once(connection: Connection, database_url: str, seed: int) -> None:
    """Random changes from six sessions: no deadlock, nothing broken, nothing unexpected."""
    for path in ("a/a", "a/b", "b/a", "b/b"):
        penstock.create_topic(connection, f"{path}/a", 2, create_namespaces=True)
    with ThreadPoolExecutor(THREADS) as pool:
        work = [pool.submit(_work, database_url, seed * THREADS + n) for n in range(THREADS)]
    met: Counter[str] = sum((each.result() for each in work), Counter())
    drain(connection)
    assert broken(connection) == {}
    assert met.keys() <= {"done", "PS001", "PS002", "PS005", "PS007", "PS013", "PS020", "PS035"}
    assert met["done"] > THREADS * STEPS / 5


def _subscribe_while_unsubscribing(connection: Connection, url: str) -> object:
    penstock.create_topic(connection, "shop/bills", create_namespaces=True)
    stream.subscribe(connection, "billing", ["shop/bills"])
    with open_transaction(url) as leaving:
        # Where unsubscribe stands between its lock and its DELETE.
        leaving.execute("SELECT FROM penstock.subscriptions FOR UPDATE")

        def go_on() -> None:
            stream.unsubscribe(leaving, "billing")
            leaving.commit()

        waited, answer = meets(
            go_on, connection, url, lambda own: stream.subscribe(own, "billing", ["shop/bills"])
        )
    assert waited
    return answer


def test_a_subscription_that_goes_is_made_anew(connection: Connection, database_url: str) -> None:
    """Guard: subscribe looks again when what it waited for is gone."""
    assert _subscribe_while_unsubscribing(connection, database_url) == 1
    assert broken(connection) == {}


def test_without_the_second_look_it_fails(connection: Connection, database_url: str) -> None:
    """Mutant: one try."""
    without_guard(connection, "subscribe", "EXIT WHEN FOUND;", "EXIT;")
    answer = _subscribe_while_unsubscribing(connection, database_url)
    assert isinstance(answer, WrongMode)  # of a subscription that is not there


def test_a_missing_parent_made_by_two_at_once(connection: Connection, database_url: str) -> None:
    """create_namespaces: the second waits, and says what stands in its way."""
    with open_transaction(database_url) as one:
        penstock.create_topic(one, "x/y/z", create_namespaces=True)
        waited, answer = meets(
            one.commit,
            connection,
            database_url,
            lambda own: penstock.create_topic(own, "x/y/other", create_namespaces=True),
        )
    assert waited
    assert isinstance(answer, AlreadyExists | NamespaceNotFound)
    penstock.create_topic(connection, "x/y/other", create_namespaces=True)
