"""Publishing means the same on every engine."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock
from penstock import Message, database
from penstock.errors import (
    BackPressure,
    InvalidArgument,
    InvalidPartition,
    PayloadTooLarge,
    PenstockError,
    TopicNotFound,
)
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count, open_transaction
from tests.kit.log import wait_until

TOPIC = "bank/accounts"
Way = Callable[..., uuid.UUID]


def one(connection: Any, payload: bytes = b"x", **options: Any) -> uuid.UUID:
    return penstock.publish(connection, options.pop("topic", TOPIC), payload, **options)


def in_batch(connection: Any, payload: bytes = b"x", **options: Any) -> uuid.UUID:
    strict = options.pop("strict", False)
    message = Message(options.pop("topic", TOPIC), payload, **options)
    return penstock.publish_batch(connection, [message], strict=strict)[0]


@pytest.fixture(params=[one, in_batch], ids=["one", "batch"])
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


@pytest.fixture(autouse=True)
def topics(db: ContractDatabase) -> None:
    connection = db.connect()
    penstock.create_topic(connection, TOPIC, 4, create_namespaces=True)
    penstock.create_topic(connection, "bank/one", 1)


def payloads(db: ContractDatabase, topic: str = "bank/one") -> list[bytes]:
    """Everything that is in partition 0 of a topic, once it is sequenced."""
    connection = db.connect()
    while penstock.sequence(connection).more:
        pass
    return [event.payload for event in penstock.fetch(connection, topic, 0, 1, 10_000)]


def test_everything_of_an_event_arrives(db: ContractDatabase, way: Way) -> None:
    own_id = uuid.uuid4()
    headers = {"a": [1, None, True, 'ä\\\n"'], "n": 1.5, "deep": {"x": {}}}
    way(
        db.connect(), bytes(range(256)), topic="bank/one", key="Ä%s'", type="t", headers=headers,
        content_type="text/plain", event_id=own_id, partition=0, max_attempts=3, routing_key="r",
        exchange="e",
    )  # fmt: skip
    connection = db.connect()
    penstock.sequence(connection)
    (event,) = penstock.fetch(connection, "bank/one", 0, 1)
    assert (event.event_id, event.key, event.type) == (own_id, "Ä%s'", "t")
    assert (event.content_type, event.payload) == ("text/plain", bytes(range(256)))
    assert event.headers == {
        **headers,
        "penstock-exchange": "e",
        "penstock-routing-key": "r",
        "penstock-max-attempts": 3,
    }


def test_rollback_and_savepoint(db: ContractDatabase, way: Way) -> None:
    """Guard: publishing ends no transaction of the caller's."""
    with open_transaction(db) as own:
        way(own, b"1", topic="bank/one")
        database.execute(own, "SAVEPOINT a")
        way(own, b"undone", topic="bank/one")
        database.execute(own, "ROLLBACK TO SAVEPOINT a")
        database.execute(own, "SAVEPOINT b")
        way(own, b"2", topic="bank/one")
        database.execute(own, "RELEASE SAVEPOINT b")
        assert payloads(db) == []
        own.commit()
        way(own, b"rolled back", topic="bank/one")
        own.rollback()
    assert payloads(db) == [b"1", b"2"]


BAD: dict[str, tuple[dict[str, Any], type[PenstockError]]] = {
    "unknown topic": ({"topic": "bank/nothing"}, TopicNotFound),
    "topic in other case": ({"topic": "bank/Accounts"}, TopicNotFound),
    "payload over the limit": ({"payload": bytes(1_048_577)}, PayloadTooLarge),
    "no such partition": ({"partition": 4}, InvalidPartition),
    "key of 256": ({"key": "k" * 256}, InvalidArgument),
    "headers with NaN": ({"headers": {"a": float("nan")}}, InvalidArgument),
    "no attempt": ({"max_attempts": 0}, InvalidArgument),
    "a time without zone": ({"not_before": datetime(2030, 1, 1)}, InvalidArgument),
    "a delay beyond the longest": (
        {"not_before": datetime.now(UTC) + timedelta(days=31)},
        InvalidArgument,
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_and_nothing_written(db: ContractDatabase, case: str) -> None:
    changes, expected = BAD[case]
    bad = {"topic": TOPIC, "payload": b"x", **changes}
    with pytest.raises(expected) as caught:
        one(db.connect(), **bad)
    assert caught.value.hint
    with pytest.raises(expected, match="event 1"):
        penstock.publish_batch(db.connect(), [Message(TOPIC, b"x"), Message(**bad)])
    assert count(db, "events") == 0


def test_a_batch_keeps_its_order(db: ContractDatabase) -> None:
    given = [Message("bank/one", b"%d" % number) for number in range(700)]
    ids = penstock.publish_batch(db.connect(), given)
    assert len(set(ids)) == 700
    assert payloads(db) == [b"%d" % number for number in range(700)]


def test_the_second_of_a_key_is_answered_with_the_first(db: ContractDatabase, way: Way) -> None:
    """Guard: the keys' unique index."""
    first = way(db.connect(), dedup_key="a")
    assert way(db.connect(), dedup_key="a") == first
    assert way(db.connect(), dedup_key="A") != first, "keys are told apart by case"
    assert way(db.connect(), dedup_key="a ") != first, "and by blanks"
    assert way(db.connect(), dedup_key="a", topic="bank/one") != first, "a key is of one topic"
    told = penstock.publish_once(db.connect(), Message(TOPIC, b"x", dedup_key="a"))
    assert told == penstock.Published(first, duplicate=True)
    empty = way(db.connect(), dedup_key="")
    assert empty != first, "an empty key is a key"
    assert way(db.connect(), dedup_key="") == empty
    own_id = uuid.uuid4()
    for _ in range(2):
        assert way(db.connect(), dedup_key="own", event_id=own_id) == own_id
    assert count(db, "events") == 6


def test_a_batch_tells_which_are_duplicates(db: ContractDatabase) -> None:
    earlier = one(db.connect(), b"0", dedup_key="b", topic="bank/one")
    given = [("a", b"1"), ("b", b"2"), (None, b"3"), ("a", b"4"), ("c", b"5"), (None, b"3")]
    messages = [Message("bank/one", text, dedup_key=key) for key, text in given]
    ids = penstock.publish_batch(db.connect(), messages)
    assert ids[1] == earlier
    assert ids[3] == ids[0]
    assert len(set(ids)) == 5
    assert payloads(db) == [b"0", b"1", b"3", b"5", b"3"]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_the_second_waits_for_the_first_to_end(db: ContractDatabase, ends: str) -> None:
    """Guard: whoever claims the same key at the same time is waited for."""
    second = db.connect()
    with ThreadPoolExecutor(1) as pool, open_transaction(db) as first:
        own = one(first, dedup_key="a")
        waiting = pool.submit(one, second, dedup_key="a")
        db.wait_until_blocked(second)
        first.commit() if ends == "commit" else first.rollback()
        assert (waiting.result(30) == own) == (ends == "commit")
    assert count(db, "events") == 1


def test_a_key_lives_for_a_window_at_least(db: ContractDatabase) -> None:
    """Guard: what turn_dedup takes away is older than the window; a duplicate prolongs nothing."""
    connection = db.connect()
    database.call(connection, "set_setting", name="dedup_window_seconds", value=1)
    begun = time.monotonic()
    first = one(connection, dedup_key="a")

    def is_new() -> bool:
        database.call(connection, "turn_dedup")
        return one(connection, dedup_key="a") != first

    wait_until(is_new, "the key is forgotten")
    assert time.monotonic() - begun >= 1


def test_publishers_of_the_same_keys(db: ContractDatabase) -> None:
    """Guard: the keys' unique index; never two of a key and never none, whoever rolls back."""
    keys = [f"key {number}" for number in range(12)]

    def work(number: int) -> list[tuple[str, uuid.UUID]]:
        choose = random.Random(number)
        connection = db.connect(autocommit=False)
        answers = []
        for key in choose.sample(keys, len(keys)):
            if choose.random() < 0.3:
                one(connection, key.encode(), dedup_key=key)
                connection.rollback()
            answers.append((key, one(connection, key.encode(), dedup_key=key)))
            connection.commit()
        return answers

    turner = db.connect()
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(work, number) for number in range(8)]
        while not all(each.done() for each in running):
            database.call(turner, "turn_dedup")
        told = {answer for each in running for answer in each.result()}
    rows = db.run("SELECT payload FROM penstock.events")
    assert Counter(bytes(payload).decode() for (payload,) in rows) == dict.fromkeys(keys, 1)
    assert len(told) == len(keys), "everyone was told the same ids"


def test_strict_gives_the_order_of_commits(db: ContractDatabase, way: Way) -> None:
    """Guard: the lock of the key, taken before the event gets its id."""
    second = db.connect()
    with ThreadPoolExecutor(1) as pool, open_transaction(db) as first:
        way(first, b"first", topic="bank/one", key="k", strict=True)
        waiting = pool.submit(way, second, b"second", topic="bank/one", key="k", strict=True)
        db.wait_until_blocked(second)
        one(db.connect(), b"plain", topic="bank/one", key="k")
        first.commit()
        waiting.result(30)
    assert payloads(db) == [b"first", b"plain", b"second"]


def test_back_pressure(db: ContractDatabase, way: Way) -> None:
    """Guard: the limit of the topic, measured as a worker does; what is sequenced presses not."""
    connection = db.connect()
    binds = {"topic": "bank/one", "max_events": 3, "max_bytes": None}
    database.call(connection, "set_backpressure", **binds)
    for _ in range(3):
        assert database.call(connection, "measure_pressure") == [(0,)]
        way(connection, topic="bank/one")
    assert database.call(connection, "measure_pressure") == [(1,)]
    with pytest.raises(BackPressure) as caught:
        way(connection, topic="bank/one")
    assert caught.value.hint
    way(connection, topic=TOPIC)
    assert count(db, "events") == 4
    assert len(payloads(db)) == 3
    way(connection, topic="bank/one")


def test_a_delayed_event_comes_when_it_is_due(db: ContractDatabase) -> None:
    """Guard: due_at; what is not due blocks nobody."""
    connection = db.connect()
    later = datetime.now(UTC) + timedelta(seconds=2)
    one(connection, b"later", topic="bank/one", not_before=later)
    in_batch(connection, b"later too", topic="bank/one", not_before=later)
    for way in (one, in_batch):
        way(connection, b"past", topic="bank/one", not_before=datetime(1990, 1, 1, tzinfo=UTC))
    one(connection, b"now", topic="bank/one")
    before = [b"past", b"past", b"now"]
    assert payloads(db) == before
    wait_until(lambda: payloads(db) == [*before, b"later", b"later too"], "they are due")
    assert datetime.now(UTC) >= later
    assert count(db, "events") == 5


def _deep(levels: int, inner: str) -> dict[str, Any]:
    return dict(json.loads('{"a":' * levels + inner + "}" * levels))


def test_headers_are_as_deep_on_every_engine(db: ContractDatabase) -> None:
    """Guard: is_json_object, which judges what MariaDB cannot, counts as JSON_DEPTH does."""
    own = db.connect()
    for inner in ("{}", "[]", "1"):
        penstock.publish(own, "bank/one", b"x", headers=_deep(32, inner), partition=0)
    for inner in ('{"a":1}', "[1]", "{}"):
        with pytest.raises(InvalidArgument, match="nested deeper"):
            penstock.publish(own, "bank/one", b"x", headers=_deep(33, inner), partition=0)
    assert payloads(db) == [b"x"] * 3
