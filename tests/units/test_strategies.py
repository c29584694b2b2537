"""How an event gets its partition: golden vectors in Python and SQL, and the strategies."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
from penstock.errors import InvalidArgument, InvalidPartition
from penstock.topics import strategies
from tests.guards import without_guard
from tests.kit.proof import proves

Connection = psycopg.Connection[tuple[Any, ...]]

#: {"partitions": [counts], "vectors": [[key, crc32, [partition for each count]]]}; never changes.
GOLDEN = json.loads(
    (Path(__file__).parents[1] / "kit" / "partition_vectors.json").read_text("utf-8")
)


def test_the_vectors_hold_what_keys_can_be() -> None:
    keys = [key for key, _, _ in GOLDEN["vectors"]]
    assert len(keys) == len(set(keys)) > 100
    assert {"", "😀", "😀" * 255, "x" * 255, "a", "A"} <= set(keys)
    assert GOLDEN["partitions"][-1] == 65_536


@proves("S7")
def test_python_chooses_the_golden_partitions() -> None:
    for key, crc, numbers in GOLDEN["vectors"]:
        assert zlib.crc32(key.encode()) == crc
        chosen = [strategies.partition_of(key, count) for count in GOLDEN["partitions"]]
        assert chosen == numbers, key


def _by_sql(connection: Connection) -> list[tuple[int, list[int]]]:
    with connection.transaction():
        connection.execute("SET LOCAL search_path TO penstock")
        return connection.execute(
            "SELECT crc32(convert_to(v.k, 'UTF8')), ARRAY("
            " SELECT partition_of(v.k, c.n) FROM unnest(%s::int[]) WITH ORDINALITY AS c (n, i)"
            " ORDER BY c.i) FROM unnest(%s::text[]) WITH ORDINALITY AS v (k, i) ORDER BY v.i",
            [GOLDEN["partitions"], [key for key, _, _ in GOLDEN["vectors"]]],
        ).fetchall()


def test_the_database_chooses_the_golden_partitions(connection: Connection) -> None:
    """Guard: partition_of is CRC-32 of the UTF-8 bytes, modulo."""
    expected = [(crc, numbers) for _, crc, numbers in GOLDEN["vectors"]]
    assert _by_sql(connection) == expected


#: Where PostgreSQL asks for the version before it makes a crc32 of its own.
CRC32 = Path(__file__).parents[2] / "sql" / "postgres" / "ground" / "inner" / "crc32.sql"
IS_OLDER = "current_setting('server_version_num')::integer < 180000"


def _own_crc32(connection: Connection, old: str = IS_OLDER, new: str = "true") -> list[int]:
    """What the crc32 that is made before PostgreSQL 18 says, on any version."""
    made = CRC32.read_text("utf-8").replace(IS_OLDER, "true")
    assert CRC32.read_text("utf-8").count(old) == 1
    with connection.transaction():
        connection.execute("SET LOCAL search_path TO penstock")
        connection.execute(made.replace(old, new).encode())
        return [
            crc
            for (crc,) in connection.execute(
                "SELECT penstock.crc32(convert_to(v.k, 'UTF8'))"
                " FROM unnest(%s::text[]) WITH ORDINALITY AS v (k, i) ORDER BY v.i",
                [[key for key, _, _ in GOLDEN["vectors"]]],
            )
        ]


@proves("S7")
def test_a_database_without_crc32_makes_the_same(connection: Connection) -> None:
    """Guard: the table of the form for older versions, and its mutant."""
    expected = [crc for _, crc, _ in GOLDEN["vectors"]]
    assert _own_crc32(connection) == expected
    assert _own_crc32(connection, "FOR bit IN 1 .. 8", "FOR bit IN 1 .. 7") != expected


def test_another_hash_is_noticed(connection: Connection) -> None:
    """Mutant: the server's own hashtext, as Python's hash() would be."""
    without_guard(
        connection, "partition_of", "crc32(convert_to(key, 'UTF8'))", "abs(hashtext(key)::bigint)"
    )
    assert _by_sql(connection) != [(crc, numbers) for _, crc, numbers in GOLDEN["vectors"]]


def test_a_thousand_keys_reach_all_partitions() -> None:
    found = Counter(strategies.partition_of(f"key {number}", 8) for number in range(1_000))
    assert set(found) == set(range(8))
    assert min(found.values()) >= 80


@pytest.mark.parametrize("partitions", [1, 2, 8, 16, 100])
def test_the_same_key_stays_in_range_and_in_place(partitions: int) -> None:
    for number in range(200):
        chosen = strategies.partition_of(str(number), partitions)
        assert 0 <= chosen < partitions
        assert chosen == strategies.partition_of(str(number), partitions)


def _choose(connection: Connection, strategy: str, key: str | None, partition: int | None) -> Any:
    with connection.transaction():
        connection.execute("SET LOCAL search_path TO penstock")
        row = connection.execute(
            "SELECT choose_partition(5, 4, %s, %s, %s::integer),"
            " partition_problem(4, %s, %s::integer)",
            [strategy, key, partition, strategy, partition],
        ).fetchone()
    assert row is not None
    number = None if row[0] is None else row[0] - (5 << 16)
    return number, row[1] and row[1][:5]


@pytest.mark.parametrize("strategy", ["crc32", "round_robin", "explicit", "client:mine"])
def test_a_named_partition_is_taken_by_every_strategy(
    connection: Connection, strategy: str
) -> None:
    assert _choose(connection, strategy, "k", 3) == (3, None)
    assert _choose(connection, strategy, "k", 4)[1] == "PS005"
    assert _choose(connection, strategy, None, -1)[1] == "PS005"


def test_each_strategy_of_the_database(connection: Connection) -> None:
    by_key = {_choose(connection, "crc32", "account 7", None) for _ in range(5)}
    assert by_key == {(strategies.partition_of("account 7", 4), None)}
    in_turn = [_choose(connection, "round_robin", "account 7", None)[0] for _ in range(8)]
    assert in_turn[:4] == in_turn[4:]
    assert sorted(in_turn[:4]) == [0, 1, 2, 3]
    assert sorted(_choose(connection, "crc32", None, None)[0] for _ in range(4)) == [0, 1, 2, 3]
    assert _choose(connection, "explicit", "k", None) == (None, "PS005")
    assert _choose(connection, "client:mine", "k", None) == (None, "PS005")


@pytest.fixture
def mine() -> Iterator[str]:
    """A registered strategy: the length of the key."""
    strategies.register_strategy("by-length", lambda key, count: len(key or "") % count)
    yield "client:by-length"
    del strategies._registered["by-length"]


def test_a_registered_strategy_chooses(mine: str) -> None:
    assert strategies.choose(mine, "four", 3) == 1
    assert strategies.choose(mine, None, 3) == 0
    assert strategies.choose("crc32", "four", 3) is None
    assert strategies.choose("round_robin", "four", 3) is None


@pytest.mark.parametrize("answer", [-1, 3, 1.0, True, "1", None])
def test_what_a_strategy_must_not_return(mine: str, answer: Any) -> None:
    strategies.register_strategy("by-length", lambda key, count: answer)
    with pytest.raises(InvalidPartition, match="returned"):
        strategies.choose(mine, "k", 3)


def test_a_strategy_that_is_not_there() -> None:
    with pytest.raises(InvalidPartition, match="not registered"):
        strategies.choose("client:nobody", "k", 3)
    with pytest.raises(InvalidPartition, match="explicit"):
        strategies.choose("explicit", "k", 3)


BAD = ["", "crc", "CRC32", "client:", "client:a b", "client:" + "x" * 101, "client:ä", "explicit "]


@pytest.mark.parametrize("strategy", BAD)
def test_a_topic_cannot_have_a_bad_strategy(connection: Connection, strategy: str) -> None:
    penstock.create_namespace(connection, "bank")
    with pytest.raises(InvalidArgument, match="strategy"):
        penstock.create_topic(connection, "bank/a", strategy=strategy)
    with pytest.raises(psycopg.Error) as refused:
        connection.execute("SELECT penstock.create_topic('bank/a', 1, %s)", [strategy])
    assert refused.value.sqlstate == "PS006"


def test_bad_registrations() -> None:
    for name in ("", "a b", "x" * 101, None):
        with pytest.raises(InvalidArgument):
            penstock.register_strategy(name, lambda key, count: 0)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        penstock.register_strategy("a", "not a function")  # type: ignore[arg-type]


def test_the_strategy_is_a_field_of_the_topic(connection: Connection) -> None:
    for strategy in ("crc32", "round_robin", "explicit", "client:by-length_1.0"):
        name = f"bank/{strategy.replace(':', ' ')}"
        penstock.create_topic(connection, name, 2, strategy=strategy, create_namespaces=True)
        assert penstock.describe_topic(connection, name).strategy == strategy
        looked_up = connection.execute("SELECT strategy FROM penstock.topic_lookup(%s)", [name])
        assert looked_up.fetchall() == [(strategy,)]
    assert {each.strategy for each in penstock.list_topics(connection)} == {
        "crc32",
        "round_robin",
        "explicit",
        "client:by-length_1.0",
    }
