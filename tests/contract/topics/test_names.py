"""Namespaces and topics: the same on every engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import database, log, subscriptions
from penstock.errors import (
    AlreadyExists,
    ControlCharacter,
    EmptyName,
    EmptySegment,
    InUse,
    InvalidArgument,
    InvalidPartition,
    MovedUnderItself,
    NamespaceNotFound,
    NameTooLong,
    PathTooLong,
    TopicNotFound,
)
from penstock.subscriptions import stream
from tests.contract.databases import MySQLDatabase
from tests.kit.proof import proves

OTHER_BYTES = {
    "plain": ("insert_packed", "CRC32(e.`key`)", "CRC32(CONCAT(e.`key`, ' '))"),
    "strict": ("find_partitions", "CRC32(i.`key`)", "CRC32(CONCAT(i.`key`, ' '))"),
}
ON_POSTGRES = (
    "partition_of", "crc32(convert_to(key, 'UTF8'))", "crc32(convert_to(key || ' ', 'UTF8'))",
)  # fmt: skip
GOLDEN = json.loads(
    (Path(__file__).parents[2] / "kit" / "partition_vectors.json").read_text("utf-8")
)

BAD_PATHS = {
    "empty": ("", EmptyName),
    "blank": (" ", EmptyName),
    "unicode blanks": ("\u00a0\u2003\u3000", EmptyName),
    "blank in the path": ("a/ /b", EmptyName),
    "name of 501": ("n" * 501, NameTooLong),
    "501 emoji": ("😀" * 501, NameTooLong),
    "path of 3,999": ("/".join(["n" * 499] * 8), PathTooLong),
    "tab": ("a\tb", ControlCharacter),
    "delete": ("a\x7f", ControlCharacter),
    "of C1": ("a\x9bb", ControlCharacter),
    "leading slash": ("/a", EmptySegment),
    "trailing slash": ("a/", EmptySegment),
    "two slashes": ("a//b", EmptySegment),
    "no parent": ("nobody/a", NamespaceNotFound),
}

#: Names that differ, although a collation or a careless comparison may think otherwise.
DIFFERENT = [
    "a",
    "A",
    "ä",
    "a\u0308",
    "Ä",
    "a ",
    "a.",
    "ß",
    "ss",
    "ﬀ",
    "ff",
    "日",
    "😀",
    "😁",
    "%",
    "_",
]


@pytest.fixture
def own(db: Any) -> Iterator[Any]:
    """A connection in autocommit mode."""
    with closing(db.connect(autocommit=True)) as connection:
        yield connection


@pytest.fixture
def shop(own: Any) -> Any:
    """A small tree."""
    for topic in ("shop/orders/new", "shop/orders/old", "shop/bills", "shop2/bills", "Shop/x"):
        penstock.create_topic(own, topic, create_namespaces=True)
    return own


def tree(own: Any) -> set[str]:
    """Every namespace and topic."""
    return {each.path for each in penstock.list_namespaces(own)} | {
        f"{each.address}!" for each in penstock.list_topics(own)
    }


@pytest.mark.parametrize("case", BAD_PATHS)
def test_each_bad_path_has_its_own_error_of_the_database(own: Any, case: str) -> None:
    """Past Python's own check."""
    path, kind = BAD_PATHS[case]
    calls: dict[str, dict[str, Any]] = {
        "create_namespace": {"path": path},
        "rename_namespace": {"path": path, "new_name": "x"},
        "move_namespace": {"path": path, "new_parent": ""},
        "delete_namespace": {"path": path, "with_topics": False},
    }
    for name, binds in calls.items():
        with pytest.raises(kind) as refused:
            database.call(own, name, **binds)
        assert type(refused.value) is kind, name
        assert refused.value.hint


def test_names_that_differ_are_different(own: Any) -> None:
    for name in DIFFERENT:
        penstock.create_namespace(own, name)
        penstock.create_topic(own, f"{name}/{name}")
        with pytest.raises(AlreadyExists):
            penstock.create_topic(own, f"{name}/{name}")
    assert {each.path for each in penstock.list_namespaces(own)} == set(DIFFERENT)
    for name in DIFFERENT:
        found = [each.address for each in penstock.list_topics(own, name)]
        assert found == [f"{name}/{name}"]


def test_limits_are_met_exactly_and_count_code_points(own: Any) -> None:
    path = "/".join(["😀" * 499] * 7 + ["n" * 496])
    penstock.create_topic(own, f"{path}/abc", create_namespaces=True)
    penstock.publish(own, f"{path}/abc", b"x")
    for call in (
        lambda: database.call(
            own, "create_topic", topic=f"{path}/abcd", partitions=1, strategy="crc32"
        ),
        lambda: penstock.rename_namespace(own, "😀" * 499, "😀" * 500),
        lambda: database.call(own, "rename_topic", topic=f"{path}/abc", new_name="abcd"),
    ):
        with pytest.raises(PathTooLong):
            call()
    penstock.create_namespace(own, "n" * 500)
    penstock.create_topic(own, "n" * 500 + "/" + "ä" * 500, 1_024)
    for count in (0, -1, 65_537):
        with pytest.raises(InvalidPartition):
            database.call(own, "create_topic", topic="Z/z", partitions=count, strategy="crc32")


def test_a_rename_carries_the_subtree_along(shop: Any) -> None:
    assert penstock.rename_namespace(shop, "shop", "%store_") == "%store_"
    assert tree(shop) == {
        "%store_", "%store_/orders", "Shop", "shop2",
        "%store_/bills!", "%store_/orders/new!", "%store_/orders/old!", "Shop/x!", "shop2/bills!",
    }  # fmt: skip
    assert penstock.rename_namespace(shop, "%store_", "%STORE_") == "%STORE_"
    assert "%STORE_/orders/new!" in tree(shop)


def test_a_move_takes_the_subtree_to_a_parent_or_the_root(shop: Any) -> None:
    assert penstock.move_namespace(shop, "shop", "shop2") == "shop2/shop"
    assert {"shop2/shop/orders", "shop2/shop/orders/new!", "shop2/shop/bills!"} <= tree(shop)
    assert penstock.move_namespace(shop, "shop2/shop/orders", "") == "orders"
    assert {"orders", "orders/old!", "shop2/bills!"} <= tree(shop)
    for parent in ("shop2", "shop2/shop"):
        with pytest.raises(MovedUnderItself):
            penstock.move_namespace(shop, "shop2", parent)
    with pytest.raises(NamespaceNotFound):
        penstock.move_namespace(shop, "orders", "nobody")


def test_a_taken_name_is_refused_also_at_the_root(shop: Any) -> None:
    penstock.create_namespace(shop, "shop/x")
    penstock.create_namespace(shop, "orders")
    before = tree(shop)
    calls: list[Callable[[], object]] = [
        lambda: penstock.create_namespace(shop, "shop2"),
        lambda: penstock.rename_namespace(shop, "shop", "shop2"),
        lambda: penstock.rename_namespace(shop, "shop/x", "orders"),
        lambda: penstock.move_namespace(shop, "shop/orders", ""),
        lambda: penstock.move_namespace(shop, "orders", "shop"),
        lambda: penstock.rename_topic(shop, "shop/orders/new", "old"),
        lambda: penstock.move_topic(shop, "shop2/bills", "shop"),
    ]
    for call in calls:
        with pytest.raises(AlreadyExists):
            call()
    assert tree(shop) == before


def test_what_fails_in_a_transaction_is_undone_with_it(db: Any, shop: Any) -> None:
    before = tree(shop)
    with closing(db.connect(autocommit=False)) as changing:
        penstock.rename_namespace(changing, "shop", "store")
        penstock.move_topic(changing, "store/bills", "Shop")
        penstock.delete_namespace(changing, "store", with_topics=True)
        assert "Shop/bills!" in tree(changing)
        changing.rollback()
    assert tree(shop) == before


def test_a_deleted_namespace_takes_all_below_it(shop: Any) -> None:
    with pytest.raises(InUse):
        penstock.delete_namespace(shop, "shop")
    assert penstock.delete_namespace(shop, "shop", with_topics=True) == 3
    assert tree(shop) == {"Shop", "shop2", "Shop/x!", "shop2/bills!"}
    penstock.create_namespace(shop, "shop/a", parents=True)
    assert penstock.delete_namespace(shop, "shop") == 0


def test_events_stay_with_a_topic_that_is_renamed_and_moved(shop: Any) -> None:
    penstock.publish(shop, "shop/bills", b"1")
    log.sequence(shop)
    assert penstock.rename_topic(shop, "shop/bills", "Bills") == "shop/Bills"
    assert penstock.move_topic(shop, "shop/Bills", "shop2") == "shop2/Bills"
    penstock.publish(shop, "shop2/Bills", b"2")
    log.sequence(shop)
    events = penstock.fetch(shop, "shop2/Bills", 0, 1)
    assert [(event.sequence, event.payload) for event in events] == [(1, b"1"), (2, b"2")]
    with pytest.raises(TopicNotFound):
        penstock.publish(shop, "shop/bills", b"3")


def test_partitions_are_only_added(shop: Any) -> None:
    assert penstock.resize_topic(shop, "shop/bills", 4) == 1
    assert penstock.resize_topic(shop, "shop/bills", 4) == 4
    with pytest.raises(InvalidPartition):
        penstock.resize_topic(shop, "shop/bills", 3)
    penstock.publish(shop, "shop/bills", b"1", partition=3)
    log.sequence(shop)
    assert log.high_watermarks(shop, "shop/bills") == {0: 0, 1: 0, 2: 0, 3: 1}
    described = penstock.describe_topic(shop, "shop/bills")
    assert (len(described.partitions), described.strategy) == (4, "crc32")


def test_a_publisher_is_open_across_resize_and_deletion(db: Any, shop: Any) -> None:
    """Neither waits for it; what it commits after the deletion is discarded."""
    with closing(db.connect(autocommit=False)) as publisher:
        penstock.publish(publisher, "shop/bills", b"1")
        penstock.publish(publisher, "shop2/bills", b"2")
        penstock.resize_topic(shop, "shop2/bills", 3)
        penstock.delete_topic(shop, "shop/bills")
        log.sequence(shop)
        publisher.commit()
    for _ in range(3):
        log.sequence(shop)
    assert [event.payload for event in penstock.fetch(shop, "shop2/bills", 0, 1)] == [b"2"]
    penstock.create_topic(shop, "shop/bills")
    penstock.publish(shop, "shop/bills", b"new")
    log.sequence(shop)
    events = penstock.fetch(shop, "shop/bills", 0, 1)
    assert [(event.sequence, event.payload) for event in events] == [(1, b"new")]


def test_what_is_subscribed_is_not_deleted_by_chance(shop: Any) -> None:
    stream.subscribe(shop, "billing", ["shop/bills", "shop2/bills"])
    assert penstock.resize_topic(shop, "shop/bills", 3) == 1
    assert len(stream.position(shop, "billing", "shop/bills")) == 3
    for call in (
        lambda: penstock.delete_namespace(shop, "shop", with_topics=True),
        lambda: penstock.delete_topic(shop, "shop/bills"),
    ):
        with pytest.raises(InUse):
            call()
    penstock.delete_topic(shop, "shop/bills", with_subscriptions=True)
    assert {each.topic for each in subscriptions.lag(shop, "billing")} == {"shop2/bills"}


@proves("S7")
def test_keys_go_to_the_golden_partitions(own: Any) -> None:
    count = 7
    penstock.create_topic(own, "shop/keys", count, create_namespaces=True)
    place = GOLDEN["partitions"].index(count)
    expected = {key: numbers[place] for key, _, numbers in GOLDEN["vectors"] if "\0" not in key}
    messages = [penstock.Message("shop/keys", b"x", key=key) for key in expected]
    for strict in (False, True):
        penstock.publish_batch(own, messages, strict=strict)
    penstock.publish(own, "shop/keys", b"x", key="account 7", partition=6)
    log.sequence(own)
    found = {
        (event.key, event.partition)
        for partition in range(count)
        for event in penstock.fetch(own, "shop/keys", partition, 1)
    }
    assert found == set(expected.items()) | {("account 7", 6)}


@proves("S7", guard="CRC-32 of the UTF-8 bytes")
@pytest.mark.parametrize("way", OTHER_BYTES)
def test_another_hash_is_noticed(db: Any, own: Any, way: str) -> None:
    """Mutant of S7: CRC-32 of other bytes."""
    db.without_guard(*(ON_POSTGRES if db.engine == "postgres" else OTHER_BYTES[way]))
    with pytest.raises(AssertionError):
        test_keys_go_to_the_golden_partitions(own)


def test_the_strategy_is_the_topics(own: Any) -> None:
    for strategy in ("round_robin", "explicit", "client:by-length"):
        topic = f"shop/{strategy.replace(':', ' ')}"
        penstock.create_topic(own, topic, 4, strategy=strategy, create_namespaces=True)
        assert penstock.describe_topic(own, topic).strategy == strategy
    for _ in range(8):
        penstock.publish(own, "shop/round_robin", b"x", key="the same")
    log.sequence(own)
    assert set(log.high_watermarks(own, "shop/round_robin").values()) == {2}
    for topic in ("shop/explicit", "shop/client by-length"):
        with pytest.raises(InvalidPartition):
            penstock.publish(own, topic, b"x", key="k")
        penstock.publish(own, topic, b"x", key="k", partition=2)
    for strategy in ("", "CRC32", "client:", "client:a b"):
        with pytest.raises(InvalidArgument):
            database.call(own, "create_topic", topic="shop/z", partitions=1, strategy=strategy)


def test_a_list_below_a_namespace_reads_nothing_of_others(mysql_db: MySQLDatabase) -> None:
    """It looked for the last of all addresses, and read each for that."""
    with closing(mysql_db.connect()) as connection:
        penstock.create_namespace(connection, "n")
        penstock.create_namespace(connection, "other")
        penstock.create_topic(connection, "n/t")
        for number in range(40):
            penstock.create_topic(connection, f"other/{number}")
        database.execute(connection, "ANALYZE TABLE penstock.topics")
        before = _read(connection)
        assert [each.address for each in penstock.list_topics(connection, "n")] == ["n/t"]
        assert _read(connection) - before < 40


def _read(connection: Any) -> int:
    """How many rows the session has read."""
    rows = database.execute(connection, "SHOW SESSION STATUS LIKE 'Handler_read%'")
    return sum(int(value) for name, value in rows)
