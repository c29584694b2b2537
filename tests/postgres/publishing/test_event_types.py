"""Types of the application as events, and a transaction around both."""

from __future__ import annotations

import enum
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm

import penstock
from penstock import Message, Registry, within_transaction
from penstock.errors import EmptyName, InvalidArgument, InvalidName, TopicNotFound
from tests.kit.adapters import django_connection

Connection = psycopg.Connection[Any]
TOPIC = "shop/orders"


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Line:
    price: Decimal


@dataclass(frozen=True)
class Placed:
    order: int
    customer: str = "Ada"
    lines: tuple[Line, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PlacedTwice(Placed):
    pass


@dataclass(frozen=True)
class PlacedThrice(PlacedTwice):
    pass


class Plain:
    pass


@pytest.fixture
def registry() -> Registry:
    made = Registry()
    made.register(Placed, type="order.placed", topic=TOPIC, key=lambda order: order.customer)
    return made


def test_an_object_becomes_a_message(registry: Registry) -> None:
    own_id = uuid.uuid4()
    extra = {"id": own_id, "at": datetime(2026, 1, 2, tzinfo=UTC), "on": date(2026, 1, 2)}
    order = Placed(7, lines=(Line(Decimal("1.10")),), extra={**extra, "colour": Colour.RED})
    message = registry.message(order)
    assert (message.topic, message.type, message.key) == (TOPIC, "order.placed", "Ada")
    assert message.content_type == "application/json"
    assert json.loads(bytes(message.payload)) == {
        "order": 7,
        "customer": "Ada",
        "lines": [{"price": "1.10"}],
        "extra": {
            "id": str(own_id), "at": "2026-01-02T00:00:00+00:00", "on": "2026-01-02",
            "colour": "red",
        },
    }  # fmt: skip


def test_a_marshaller_and_a_content_type_of_its_own(registry: Registry) -> None:
    registry.register(
        Plain, type="plain", topic=TOPIC, content_type="text/plain", marshal=lambda _: b"text"
    )
    message = registry.message(Plain())
    assert (message.payload, message.content_type, message.key) == (b"text", "text/plain", None)


def test_what_is_given_stands_before_the_route(registry: Registry) -> None:
    order = Placed(7)
    message = registry.message(order, type="order.placed.v2")
    assert (message.type, message.topic, message.key) == ("order.placed.v2", TOPIC, "Ada")
    message = registry.message(
        order, type="other", topic="shop/audit", key=None, content_type="x/y", dedup_key="7",
        headers={"a": 1}, partition=3,
    )  # fmt: skip
    assert (message.type, message.topic, message.key) == ("other", "shop/audit", None)
    assert (message.content_type, message.dedup_key, message.partition) == ("x/y", "7", 3)
    assert message.headers == {"a": 1}
    ready = Message("a/b", b"x", type="t")
    assert registry.message(ready) is not None
    assert registry.message(ready, topic="c/d") == Message("c/d", b"x", type="t")


def test_an_object_goes_by_its_own_class(registry: Registry) -> None:
    """Guard: no class stands for those below it unless it says so."""
    with pytest.raises(InvalidArgument, match="PlacedTwice is not registered"):
        registry.message(PlacedTwice(1))


def test_subclasses_go_by_the_nearest_that_takes_them() -> None:
    registry = Registry()
    registry.register(Placed, type="base", topic=TOPIC, subclasses=True)
    assert registry.message(PlacedThrice(1)).type == "base"
    registry.register(PlacedTwice, type="nearer", topic=TOPIC, subclasses=True)
    assert registry.message(PlacedThrice(1)).type == "nearer"
    assert registry.message(PlacedTwice(1)).type == "nearer"
    assert registry.message(Placed(1)).type == "base"
    registry.register(PlacedThrice, type="own", topic=TOPIC)
    assert registry.message(PlacedThrice(1)).type == "own"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"type": ""}, EmptyName),
        ({"type": "  "}, EmptyName),
        ({"type": None}, EmptyName),
        ({"topic": ""}, EmptyName),
        ({"topic": "orders"}, InvalidName),
        ({"topic": None}, InvalidName),
        ({"key": "customer"}, InvalidArgument),
        ({"marshal": b"x"}, InvalidArgument),
    ],
)
def test_bad_registrations_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Registry().register(Plain, **{"type": "t", "topic": TOPIC, **options})


def test_a_type_is_registered_once(registry: Registry) -> None:
    with pytest.raises(InvalidArgument, match="registered already"):
        registry.register(Placed, type="other", topic=TOPIC)
    with pytest.raises(InvalidArgument, match="is not a class"):
        registry.register(Placed(1), type="other", topic=TOPIC)  # type: ignore[arg-type]


@pytest.mark.parametrize("event", [None, Placed, Plain(), "text", {"a": 1}])
def test_what_is_not_registered_is_refused(registry: Registry, event: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        registry.message(event)
    assert caught.value.hint


def test_overrides_may_not_be_empty(registry: Registry) -> None:
    for options in ({"type": ""}, {"topic": ""}):
        with pytest.raises(EmptyName):
            registry.message(Placed(1), **options)


def test_what_cannot_be_written_is_refused(registry: Registry) -> None:
    registry.register(Plain, type="t", topic=TOPIC)
    for event in (Plain(), Placed(1, extra={"a": object()}), Placed(1, extra={"a": float("nan")})):
        with pytest.raises(InvalidArgument, match="JSON"):
            registry.message(event)
    text = Registry()
    text.register(Plain, type="t", topic=TOPIC, marshal=lambda _: "text")  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidArgument, match="does not return bytes"):
        text.message(Plain())


@pytest.fixture
def topics(connection: Connection) -> None:
    penstock.create_topic(connection, TOPIC, 1, create_namespaces=True)
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")


def kept(connection: Connection) -> tuple[list[str], int]:
    rows = connection.execute("SELECT type FROM penstock.events ORDER BY id").fetchall()
    orders = connection.execute("SELECT count(*) FROM orders").fetchone()
    assert orders is not None
    return [row[0] for row in rows], orders[0]


@pytest.mark.usefixtures("topics")
def test_a_registry_publishes(registry: Registry, connection: Connection) -> None:
    first = registry.publish(connection, Placed(1), dedup_key="1")
    assert registry.publish(connection, Placed(1), dedup_key="1").event_id == first.event_id
    ids = registry.publish_batch(connection, [Placed(2), Message(TOPIC, b"x", type="ready")])
    assert len({first.event_id, *ids}) == 3
    assert kept(connection)[0] == ["order.placed", "order.placed", "ready"]
    with pytest.raises(InvalidArgument, match="event 1: "):
        registry.publish_batch(connection, [Placed(2), Plain()])


Connect = Callable[[], Any]


def _autocommit(url: str) -> Connect:
    return lambda: psycopg.connect(url, autocommit=True)


def _psycopg(url: str) -> Connect:
    return lambda: psycopg.connect(url)


def _engine(url: str) -> Connect:
    return sqlalchemy.create_engine(
        url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sqlalchemy.NullPool
    ).connect


def _session(url: str) -> Connect:
    address = url.replace("postgresql:", "postgresql+psycopg:")
    engine = sqlalchemy.create_engine(address, poolclass=sqlalchemy.NullPool)
    return sqlalchemy.orm.sessionmaker(engine)


def _insert(connection: Any, number: int) -> None:
    penstock.database.execute(connection, f"INSERT INTO orders VALUES ({number})")


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize("way", [_psycopg, _autocommit, _engine, _session])
def test_both_commit_or_neither(
    registry: Registry, connection: Connection, database_url: str, way: Callable[[str], Connect]
) -> None:
    """Guard: one transaction around the domain writes and the events, ended here alone."""
    connect = way(database_url)

    def place(own: Any) -> list[Placed]:
        _insert(own, 1)
        return [Placed(1), Placed(1)]

    def place_and_fail(own: Any) -> list[Placed]:
        _insert(own, 2)
        raise ZeroDivisionError

    def place_what_cannot_be_published(own: Any) -> list[Any]:
        _insert(own, 3)
        return [Placed(3), Plain()]

    def place_to_nowhere(own: Any) -> list[Message]:
        _insert(own, 4)
        return [Message(TOPIC, b"x"), Message("shop/nowhere", b"x")]

    assert len(within_transaction(connect, place, registry=registry)) == 2
    for failing, error in (
        (place_and_fail, ZeroDivisionError),
        (place_what_cannot_be_published, InvalidArgument),
        (place_to_nowhere, TopicNotFound),
        (place, Exception),  # the primary key of orders
    ):
        with pytest.raises(error):
            within_transaction(connect, failing, registry=registry)
    assert within_transaction(connect, lambda own: _insert(own, 5)) == []
    assert kept(connection) == (["order.placed", "order.placed"], 2)


@pytest.mark.usefixtures("topics")
def test_within_djangos_transaction(connection: Connection, database_url: str) -> None:
    from django.db import connections

    own = django_connection(database_url)
    connections["default"] = own
    try:
        ids = within_transaction(lambda: own, lambda _: [Message(TOPIC, b"x", type="1")])
        with pytest.raises(ZeroDivisionError):
            within_transaction(lambda: own, lambda _: [1 / 0])
        assert own.connection is not None, "Django keeps its connections"
    finally:
        own.close()
    assert len(ids) == 1
    assert kept(connection)[0] == ["1"]


@pytest.mark.usefixtures("topics")
def test_a_connection_in_a_transaction_is_refused(database_url: str) -> None:
    def connect() -> Any:
        opened = _engine(database_url)()
        opened.begin()
        return opened

    with pytest.raises(InvalidArgument, match="in a transaction already"):
        within_transaction(connect, lambda own: [])
