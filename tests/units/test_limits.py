"""Headers that no reader could decode, and numbers that no column could hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import penstock
from penstock import Message, log
from penstock.errors import InvalidArgument
from penstock.records import UNDECODABLE, Lease, as_headers
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership
from penstock.topics import names

TOPIC = "bank/accounts"

Connection = psycopg.Connection[tuple[Any, ...]]


def nested(levels: int) -> str:
    """Headers whose innermost value stands that many levels deep."""
    return '{"a": ' + "[" * (levels - 1) + "1" + "]" * (levels - 1) + "}"


def sized(size: int) -> str:
    """Headers of so many bytes."""
    return json.dumps({"a": "x" * (size - 9)})


REFUSED = {
    "5,000 digits": '{"a": ' + "9" * 5_000 + "}",
    "401 digits": '{"a": {"b": [-' + "9" * 401 + "]}}",
    "7,000 levels": nested(7_000),
    "33 levels": nested(33),
    "64 KiB and a byte": sized(65_537),
    "64 KiB of two bytes each": json.dumps({"a": "ä" * 40_000}, ensure_ascii=False),
}
TAKEN = {
    "400 digits": '{"a": ' + "9" * 400 + "}",
    "32 levels": nested(32),
    "64 KiB": sized(65_536),
    "digits in a string": json.dumps({"a": '"\\' + "9" * 5_000 + '"'}),
    "brackets in a string": json.dumps({"a": "[" * 5_000}),
    "a float that is long as text": '{"a": 1.5e-300}',
}


@pytest.fixture(autouse=True)
def _topic(connection: Connection) -> None:
    names.create_topic(connection, TOPIC, create_namespaces=True)


def in_one(connection: Connection, headers: str) -> None:
    connection.execute("SELECT penstock.publish(%s, 'x', headers => %s::jsonb)", [TOPIC, headers])


def in_batch(connection: Connection, headers: str) -> None:
    connection.execute(
        "SELECT penstock.publish_batch(ARRAY[%s], ARRAY['x'::bytea], ARRAY[NULL], ARRAY[''],"
        " ARRAY[''], ARRAY[%s], NULL, NULL)",
        [TOPIC, headers],
    )


def in_bulk(connection: Connection, headers: str) -> None:
    with connection.transaction():
        connection.execute("SELECT penstock.prepare_bulk()")
        connection.execute(
            "INSERT INTO penstock_bulk (topic, headers, payload) VALUES (%s, %s::jsonb, 'x')",
            [TOPIC, headers],
        )
        connection.execute("SELECT penstock.publish_bulk()")


WAYS = (in_one, in_batch, in_bulk)


@pytest.mark.parametrize("way", WAYS)
def test_the_database_refuses_headers_that_readers_cannot_decode(
    connection: Connection, way: Callable[[Connection, str], None], subtests: pytest.Subtests
) -> None:
    for case, headers in REFUSED.items():
        with subtests.test(case), pytest.raises(psycopg.Error, match="its headers") as caught:
            way(connection, headers)
        assert caught.value.sqlstate == "PS006"
    for case, headers in TAKEN.items():
        with subtests.test(case):
            way(connection, headers)
    log.sequence(connection)
    found = [event.headers for event in log.fetch(connection, TOPIC, 0, 1, 100)]
    assert found == [json.loads(headers) for headers in TAKEN.values()]


def test_the_client_refuses_them_before_the_database(
    connection: Connection, subtests: pytest.Subtests
) -> None:
    deep: dict[str, Any] = {}
    for _ in range(33):
        deep = {"a": deep}
    refused: dict[str, dict[str, Any]] = {
        name: json.loads(headers)
        for name, headers in REFUSED.items()
        if name not in {"5,000 digits", "7,000 levels"}
    }
    refused |= {"dictionaries": deep, "digits": {"a": 10**5_000}}
    for case, headers in refused.items():
        with subtests.test(case), connection.transaction():
            with pytest.raises(InvalidArgument):
                penstock.publish(connection, TOPIC, b"x", headers=headers)
            connection.execute("SELECT 1")  # the transaction lives on
    for case, text in TAKEN.items():
        with subtests.test(case):
            headers = json.loads(text)
            penstock.publish(connection, TOPIC, b"x", headers=headers)
            penstock.publish_batch(connection, [Message(TOPIC, b"x", headers=headers)])


@pytest.mark.parametrize("form", [str, str.encode])
def test_an_event_with_headers_of_before_the_limits_flows(
    form: Callable[[str], str | bytes],
) -> None:
    assert as_headers(form('{"a": %s, "b": 1}' % ("9" * 5_000))) == {"a": "9" * 5_000, "b": 1}
    assert as_headers(form('{"a": 1.5, "b": %s.5}' % ("9" * 400))) == {
        "a": 1.5,
        "b": "9" * 400 + ".5",
    }
    deep = nested(200_000)
    assert as_headers(form(deep)) == {UNDECODABLE: deep[:1_000]}
    assert as_headers(form("{")) == {UNDECODABLE: "{"}
    assert as_headers(form("[1]")) == {UNDECODABLE: "[1]"}


def test_a_number_out_of_range_is_an_invalid_argument(
    connection: Connection, subtests: pytest.Subtests
) -> None:
    stream.subscribe(connection, "ledger", [TOPIC])
    member: Membership = stream.join(connection, "ledger", "one")
    leases = [Lease(TOPIC, 0, 1, 1, "active", 0, 1)]
    calls: dict[str, Callable[[], object]] = {
        "fetch": lambda: log.fetch(connection, TOPIC, 0, 2**63, 1),
        "fetch, far": lambda: log.fetch(connection, TOPIC, 0, 99999999999999999999, 1),
        "sequence": lambda: log.sequence(connection, 2**40),
        "poll": lambda: stream.poll(connection, member, leases, max_events=2**40),
        "commit": lambda: stream.commit(connection, member, [(leases[0], 2**70)]),
        "partition": lambda: stream.seek(connection, "ledger", TOPIC, 2**40, "earliest"),
    }
    for case, call in calls.items():
        with subtests.test(case), pytest.raises(InvalidArgument, match="number is out of range"):
            call()
