"""Namespaces and topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from hypothesis import given, strategies as st

import penstock
from penstock import database, log
from penstock.errors import (
    AlreadyExists,
    ControlCharacter,
    EmptyName,
    EmptySegment,
    InUse,
    InvalidName,
    InvalidPartition,
    MovedUnderItself,
    NamespaceNotFound,
    NameTooLong,
    PathTooLong,
    TopicNotFound,
    WrongIsolation,
)
from penstock.topics import validation
from tests.guards import without_guard

Connection = psycopg.Connection[tuple[Any, ...]]

good = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=30
).filter(str.strip)


def test_names_are_created_and_listed(connection: Connection) -> None:
    penstock.create_namespace(connection, "bank")
    penstock.create_namespace(connection, "bank/north/west", parents=True)
    penstock.create_topic(connection, "bank/accounts", 3)
    penstock.create_topic(connection, "shop/orders/new", create_namespaces=True)
    namespaces = [each.path for each in penstock.list_namespaces(connection)]
    assert namespaces == ["bank", "bank/north", "bank/north/west", "shop", "shop/orders"]
    topics = [(each.address, each.partitions) for each in penstock.list_topics(connection)]
    assert topics == [("bank/accounts", 3), ("shop/orders/new", 1)]
    assert [each.address for each in penstock.list_topics(connection, "bank")] == ["bank/accounts"]


def test_a_topic_is_described(connection: Connection) -> None:
    penstock.create_topic(connection, "bank/accounts", 2, create_namespaces=True)
    described = penstock.describe_topic(connection, "bank/accounts")
    assert [(p.partition, p.low_sequence, p.high_watermark) for p in described.partitions] == [
        (0, 1, 0),
        (1, 1, 0),
    ]
    with pytest.raises(TopicNotFound):
        penstock.describe_topic(connection, "bank/Accounts")


def test_a_missing_parent_is_named(connection: Connection) -> None:
    with pytest.raises(NamespaceNotFound, match='"bank"'):
        penstock.create_topic(connection, "bank/accounts")
    with pytest.raises(NamespaceNotFound, match='"bank"'):
        penstock.create_namespace(connection, "bank/north")


def test_names_are_taken_once_and_case_counts(connection: Connection) -> None:
    penstock.create_namespace(connection, "bank")
    penstock.create_namespace(connection, "Bank")
    penstock.create_topic(connection, "bank/a")
    for create, name in (
        (penstock.create_namespace, "bank"),
        (penstock.create_topic, "bank/a"),
    ):
        with pytest.raises(AlreadyExists, match="Choose another name"):
            create(connection, name)


@pytest.mark.parametrize("partitions", [0, -1, 65_537, True, 1.5, "2"])
def test_a_number_of_partitions_that_cannot_be_is_refused(partitions: Any) -> None:
    with pytest.raises(InvalidPartition):
        validation.partition_count(partitions)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", "is empty"),
        ("/", "empty name in its path"),
        ("/a", "empty name in its path"),
        ("a//b", "empty name in its path"),
        ("a/", "empty name in its path"),
        ("a/ /b", "name of a namespace is empty"),
        ("a\x7f", "control character"),
        ("n" * 501, "501 characters"),
        ("/".join(["n" * 499] * 8), "3999 characters"),
        (None, "NoneType"),
    ],
)
def test_a_bad_namespace_has_its_own_message(path: Any, said: str) -> None:
    with pytest.raises(InvalidName, match=said):
        validation.namespace(path)


@given(names=st.lists(good, min_size=2, max_size=5))
def test_a_good_address_is_taken(names: list[str]) -> None:
    assert validation.topic("/".join(names)) == "/".join(names)


@given(text=st.text(max_size=40))
def test_an_address_is_taken_or_refused_as_a_name(text: str) -> None:
    try:
        validation.topic(text)
    except InvalidName as error:
        assert error.hint
    else:
        assert all(name.strip() for name in text.split("/"))


@given(names=st.lists(good, min_size=1, max_size=3))
def test_what_python_takes_the_database_takes(names: list[str], shared: Connection) -> None:
    path = "/".join(names)
    with shared.transaction(force_rollback=True):
        penstock.create_namespace(shared, path, parents=True)
        penstock.create_topic(shared, f"{path}/topic")


@pytest.fixture(scope="module")
def shared(postgres_server: Any, migrated_template: str) -> Any:
    """One database for many examples, which all roll back."""
    url = postgres_server.create("penstock_names", migrated_template)
    with psycopg.connect(url, autocommit=True) as opened:
        yield opened
    postgres_server.drop("penstock_names")


#: What cannot be the path of a namespace, and the error of its own that it gets.
BAD_PATHS = {
    "empty": ("", EmptyName),
    "blank": (" ", EmptyName),
    "unicode blanks": ("\u00a0\u2003\u3000", EmptyName),
    "blank in the path": ("a/ /b", EmptyName),
    "name of 501": ("n" * 501, NameTooLong),
    "501 emoji": ("😀" * 501, NameTooLong),
    "name of 501 in the path": ("a/" + "n" * 501 + "/b", NameTooLong),
    "path of 3,999": ("/".join(["n" * 499] * 8), PathTooLong),
    "tab": ("a\tb", ControlCharacter),
    "only a tab": ("\t", ControlCharacter),
    "delete": ("a\x7f", ControlCharacter),
    "of C1": ("a\x9bb", ControlCharacter),
    "leading slash": ("/a", EmptySegment),
    "trailing slash": ("a/", EmptySegment),
    "two slashes": ("a//b", EmptySegment),
    "only a slash": ("/", EmptySegment),
    "no parent": ("nobody/a", NamespaceNotFound),
}


@pytest.mark.parametrize("case", BAD_PATHS)
def test_each_bad_path_has_its_own_error_in_sql_and_in_python(
    case: str, shared: Connection
) -> None:
    path, kind = BAD_PATHS[case]
    with (
        shared.transaction(force_rollback=True),
        pytest.raises(kind) as by_sql,
        database.typed_errors(),
    ):
        shared.execute("SELECT penstock.create_namespace(%s)", [path])
    assert type(by_sql.value) is kind
    with shared.transaction(force_rollback=True), pytest.raises(kind) as by_python:
        penstock.create_namespace(shared, path)
    assert type(by_python.value) is kind


@pytest.mark.parametrize("case", BAD_PATHS)
def test_each_function_of_names_refuses_it(case: str, shared: Connection) -> None:
    path, kind = BAD_PATHS[case]
    calls: list[Callable[[], object]] = [
        lambda: penstock.rename_namespace(shared, path, "b"),
        lambda: penstock.move_namespace(shared, path, ""),
        lambda: penstock.delete_namespace(shared, path),
        lambda: penstock.grant_namespace(shared, path, "postgres", "read"),
        lambda: penstock.revoke_namespace(shared, path, "postgres", "read"),
    ]
    for call in calls:
        with shared.transaction(force_rollback=True), pytest.raises(kind):
            call()


@pytest.mark.parametrize(
    ("new_name", "kind"),
    [
        ("", EmptyName),
        ("\u3000", EmptyName),
        ("n" * 501, NameTooLong),
        ("a\n", ControlCharacter),
        ("a/b", EmptySegment),
        (None, InvalidName),
    ],
)
def test_each_bad_new_name_has_its_own_error(
    new_name: Any, kind: type[Exception], shared: Connection
) -> None:
    with shared.transaction(force_rollback=True):
        penstock.create_topic(shared, "bank/a", create_namespaces=True)
        for function, rename, old in (
            ("rename_namespace", penstock.rename_namespace, "bank"),
            ("rename_topic", penstock.rename_topic, "bank/a"),
        ):
            with pytest.raises(kind):
                rename(shared, old, new_name)
            wanted = EmptyName if new_name is None else kind
            with pytest.raises(wanted), shared.transaction(), database.typed_errors():
                shared.execute(f"SELECT penstock.{function}(%s, %s)".encode(), [old, new_name])


@given(text=st.text(max_size=12) | st.text("a/ \t\u00a0\u3000\x9f", max_size=5))
def test_python_and_the_database_draw_the_same_line(text: str, shared: Connection) -> None:
    """Hypothesis: whatever Python refuses, the database refuses with the same class."""
    if "\0" in text:
        return  # No text of PostgreSQL can hold it.
    try:
        validation.namespace(text)
    except InvalidName as error:
        expected: str | None = error.sqlstate
    else:
        expected = None
    with shared.transaction(force_rollback=True):
        try:
            with shared.transaction():
                shared.execute("SET LOCAL search_path TO penstock")
                shared.execute("SELECT require_path(%s, 'namespace', 3998)", [text])
            found = None
        except psycopg.Error as error:
            found = error.sqlstate
    assert found == expected


def test_limits_are_met_exactly_and_count_code_points(connection: Connection) -> None:
    path = "/".join(["😀" * 499] * 7 + ["n" * 496])
    assert len(path) == 3_996
    penstock.create_topic(connection, f"{path}/abc", create_namespaces=True)
    assert len(f"{path}/abc") == 4_000
    with pytest.raises(PathTooLong, match="4001"):
        penstock.create_topic(connection, f"{path}/abcd")
    with pytest.raises(PathTooLong, match="4,000"):
        penstock.rename_namespace(connection, "😀" * 499, "😀" * 500)
    with pytest.raises(PathTooLong, match="4001"):
        penstock.rename_topic(connection, f"{path}/abc", "abcd")
    assert penstock.rename_topic(connection, f"{path}/abc", "xyz") == f"{path}/xyz"
    penstock.create_namespace(connection, "n" * 500)
    penstock.create_topic(connection, "n" * 500 + "/" + "ä" * 500, 65_536)


def test_a_topic_without_a_namespace(connection: Connection) -> None:
    with pytest.raises(InvalidName, match="no namespace"), database.typed_errors():
        connection.execute("SELECT penstock.create_topic('accounts')")


def tree(connection: Connection) -> list[str]:
    """Every namespace and topic, and proof that parents, names and paths agree."""
    broken = connection.execute(
        "SELECT n.path FROM penstock.namespaces AS n LEFT JOIN penstock.namespaces AS p"
        " ON p.id = n.parent_id WHERE n.path <> COALESCE(p.path || '/', '') || n.name"
        " OR (p.id IS NULL AND n.parent_id <> 0)"
        " UNION ALL SELECT t.address FROM penstock.topics AS t LEFT JOIN penstock.namespaces AS n"
        " ON n.id = t.namespace_id WHERE t.address IS DISTINCT FROM n.path || '/' || t.name"
    ).fetchall()
    assert broken == []
    return [each.path for each in penstock.list_namespaces(connection)] + [
        f"{each.address}!" for each in penstock.list_topics(connection)
    ]


@pytest.fixture
def shop(connection: Connection) -> Connection:
    for topic in ("shop/orders/new", "shop/orders/old", "shop/bills", "shop2/bills", "Shop/x"):
        penstock.create_topic(connection, topic, create_namespaces=True)
    return connection


def test_a_rename_carries_the_subtree_along(shop: Connection) -> None:
    assert penstock.rename_namespace(shop, "shop", "%store_") == "%store_"
    assert tree(shop) == [
        "%store_", "%store_/orders", "Shop", "shop2",
        "%store_/bills!", "%store_/orders/new!", "%store_/orders/old!", "Shop/x!", "shop2/bills!",
    ]  # fmt: skip
    assert penstock.rename_namespace(shop, "%store_/orders", "b") == "%store_/b"
    assert "%store_/b/new!" in tree(shop)
    assert penstock.rename_namespace(shop, "%store_/b", "b") == "%store_/b"
    with pytest.raises(NamespaceNotFound):
        penstock.rename_namespace(shop, "shop", "b")


def test_a_move_takes_the_subtree_to_a_parent_or_the_root(shop: Connection) -> None:
    assert penstock.move_namespace(shop, "shop", "shop2") == "shop2/shop"
    assert {"shop2/shop/orders", "shop2/shop/orders/new!", "shop2/shop/bills!"} <= set(tree(shop))
    assert penstock.move_namespace(shop, "shop2/shop/orders", "") == "orders"
    assert {"orders", "orders/old!", "shop2/bills!"} <= set(tree(shop))
    assert penstock.move_namespace(shop, "orders", "") == "orders"
    with pytest.raises(NamespaceNotFound, match="nobody"):
        penstock.move_namespace(shop, "orders", "nobody")


@pytest.mark.parametrize("parent", ["shop", "shop/orders"])
def test_nothing_moves_under_itself(shop: Connection, parent: str) -> None:
    """Guard: the check in move_namespace."""
    before = tree(shop)
    with pytest.raises(MovedUnderItself):
        penstock.move_namespace(shop, "shop", parent)
    assert tree(shop) == before


def test_without_the_check_a_subtree_hangs_in_the_air(shop: Connection) -> None:
    """Mutant: a namespace under its own descendant."""
    without_guard(shop, "move_namespace", "starts_with(new_parent, path || '/')", "false")
    penstock.move_namespace(shop, "shop", "shop/orders")
    with pytest.raises(AssertionError):
        tree(shop)


def test_a_deleted_namespace_takes_all_below_it(shop: Connection) -> None:
    with pytest.raises(InUse, match='3 topics, "shop/bills"'):
        penstock.delete_namespace(shop, "shop")
    assert penstock.delete_namespace(shop, "shop", with_topics=True) == 3
    assert tree(shop) == ["Shop", "shop2", "Shop/x!", "shop2/bills!"]
    penstock.create_namespace(shop, "a/b", parents=True)
    assert penstock.delete_namespace(shop, "a") == 0
    rows = shop.execute("SELECT address FROM penstock.deleted_topics ORDER BY address").fetchall()
    assert rows == [("shop/bills",), ("shop/orders/new",), ("shop/orders/old",)]


def test_topics_are_renamed_and_moved(shop: Connection) -> None:
    penstock.publish(shop, "shop/bills", b"1")
    log.sequence(shop)
    assert penstock.rename_topic(shop, "shop/bills", "Bills") == "shop/Bills"
    assert penstock.move_topic(shop, "shop/Bills", "shop2") == "shop2/Bills"
    assert penstock.rename_topic(shop, "shop2/Bills", "Bills") == "shop2/Bills"
    assert [event.payload for event in penstock.fetch(shop, "shop2/Bills", 0, 1)] == [b"1"]
    tree(shop)
    for call in (
        lambda: penstock.rename_topic(shop, "shop/bills", "x"),
        lambda: penstock.move_topic(shop, "shop/bills", "shop2"),
        lambda: penstock.delete_topic(shop, "shop/bills"),
        lambda: penstock.resize_topic(shop, "shop/bills", 2),
    ):
        with pytest.raises(TopicNotFound):
            call()
    with pytest.raises(NamespaceNotFound):
        penstock.move_topic(shop, "shop2/Bills", "nobody")


@pytest.mark.parametrize(
    "call",
    [
        "create_namespace('b')",
        "rename_namespace('a', 'b')",
        "move_namespace('a', '')",
        "delete_namespace('a')",
        "create_topic('a/c')",
        "rename_topic('a/t', 'b')",
        "move_topic('a/t', 'a')",
        "resize_topic('a/t', 2)",
        "delete_topic('a/t')",
        "grant_namespace('a', current_user::text, 'read')",
    ],
)
def test_changes_of_names_need_read_committed(connection: Connection, call: str) -> None:
    """With an older snapshot a lock protects nothing: paths would be built on what is gone."""
    penstock.create_topic(connection, "a/t", create_namespaces=True)
    with connection.transaction(force_rollback=True), pytest.raises(WrongIsolation):
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        database.execute(connection, f"SELECT penstock.{call}")
