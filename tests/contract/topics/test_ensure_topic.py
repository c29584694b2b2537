"""``create_topic(if_not_exists=True)``: a program may call it at each start."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import penstock
from penstock.errors import AlreadyExists, InvalidArgument, InvalidPartition, NamespaceNotFound
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.contract.kit import open_transaction
from tests.contract.stream_kit import Guard, without
from tests.kit.proof import proves

TOPIC = "shop/eu/orders"
GUARDS: dict[str, Guard] = {
    "strategy": {
        "postgres": ("ensure_topic", "own.strategy <> ensure_topic.strategy", "false"),
        "mysql": (
            "ensure_topic",
            "CAST(own_strategy AS BINARY) <> CAST(strategy AS BINARY)",
            "FALSE",
        ),
    },
    "partitions": {
        "postgres": ("ensure_topic", "own.partitions < ensure_topic.partitions", "false"),
        "mysql": ("ensure_topic", "own_partitions < partitions", "FALSE"),
    },
}


def _ensure(own: Any, partitions: int = 4, topic: str = TOPIC, **options: Any) -> int:
    options = {"create_namespaces": True, **options}
    return penstock.create_topic(own, topic, partitions, if_not_exists=True, **options)


def _topics(own: Any) -> list[tuple[str, int, str]]:
    return [(each.address, each.partitions, each.strategy) for each in names.list_topics(own)]


@proves("a start changes nothing twice")
def test_it_is_created_once(db: ContractDatabase) -> None:
    """With the namespaces above it; the second call returns the same id and changes nothing."""
    own = db.connect()
    first = _ensure(own, strategy="round_robin")
    before = names.list_topics(own)
    assert _ensure(own, strategy="round_robin") == first
    assert names.list_topics(own) == before
    assert _topics(own) == [(TOPIC, 4, "round_robin")]
    assert [each.path for each in names.list_namespaces(own)] == ["shop", "shop/eu"]
    assert _ensure(own, topic="shop/eu/bills", create_namespaces=False) != first
    assert set(penstock.log.high_watermarks(own, TOPIC)) == {0, 1, 2, 3}
    assert names.describe_topic(own, TOPIC).known_as == f"{TOPIC}//{first}"


def test_it_may_have_grown(db: ContractDatabase) -> None:
    """Guard: more partitions than asked for are no error; a resize would stop every start."""
    own = db.connect()
    first = _ensure(own)
    names.resize_topic(own, TOPIC, 8)
    assert _ensure(own) == first
    assert _topics(own) == [(TOPIC, 8, "crc32")]


@pytest.mark.parametrize(
    ("partitions", "strategy", "said"),
    [(6, "crc32", "4 partitions"), (4, "round_robin", "strategy"), (2, "explicit", "strategy")],
)
def test_with_other_settings_it_is_refused(
    db: ContractDatabase, partitions: int, strategy: str, said: str
) -> None:
    """Guards: both comparisons; fewer partitions or another strategy is not what was asked for."""
    own = db.connect()
    _ensure(own)
    with pytest.raises(AlreadyExists, match=said):
        _ensure(own, partitions, strategy=strategy)
    assert _topics(own) == [(TOPIC, 4, "crc32")]


@proves("a start changes nothing twice", guard="strategy and partitions are compared")
@pytest.mark.parametrize(
    ("guard", "partitions", "strategy"),
    [("strategy", 4, "round_robin"), ("partitions", 6, "crc32")],
)
def test_without_the_guards_anything_will_do(
    db: ContractDatabase, guard: str, partitions: int, strategy: str
) -> None:
    """Mutants: what was there is taken for what was asked for."""
    own = db.connect()
    without(db, GUARDS[guard])
    assert _ensure(own) == _ensure(own, partitions, strategy=strategy)


def test_what_is_wrong_is_refused_all_the_same(db: ContractDatabase) -> None:
    own = db.connect()
    with pytest.raises(NamespaceNotFound):
        _ensure(own, create_namespaces=False)
    with pytest.raises(InvalidPartition):
        _ensure(own, 0)
    with pytest.raises(InvalidArgument):
        _ensure(own, strategy="guess")
    with pytest.raises(AlreadyExists):
        _ensure(own)
        penstock.create_topic(own, TOPIC, 4)
    assert _topics(own) == [(TOPIC, 4, "crc32")]


@proves("a start changes nothing twice")
def test_two_programs_may_start_at_once(db: ContractDatabase) -> None:
    """The second waits for the first one's transaction, and finds what it has made."""
    other = db.connect()
    with open_transaction(db) as own, ThreadPoolExecutor(1) as pool:
        first = _ensure(own)
        second = pool.submit(_ensure, other)
        db.wait_until_blocked(other)
        own.commit()
        assert second.result(timeout=60) == first
    assert _topics(other) == [(TOPIC, 4, "crc32")]


def test_what_is_rolled_back_was_not_there(db: ContractDatabase) -> None:
    """The second then makes it, although it waited for the first."""
    other = db.connect()
    with open_transaction(db) as own, ThreadPoolExecutor(1) as pool:
        _ensure(own, 2)
        second = pool.submit(_ensure, other, 4)
        db.wait_until_blocked(other)
        own.rollback()
        second.result(timeout=60)
    assert _topics(other) == [(TOPIC, 4, "crc32")]
