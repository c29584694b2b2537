"""Namespaces and topics."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import validation
from penstock.errors import (
    AlreadyExists,
    InvalidName,
    InvalidPartition,
    NamespaceNotFound,
    TopicNotFound,
)

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
