"""The options of an event: delay, headers for relays, trace context, rules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import penstock
from penstock import Message, database
from penstock.errors import InvalidArgument, InvalidPartition, PayloadTooLarge
from tests.guards import without_guard

TOPIC = "bank/accounts"
Connection = psycopg.Connection[Any]
LATER = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture(autouse=True)
def topics(connection: Connection) -> None:
    penstock.create_topic(connection, TOPIC, 4, create_namespaces=True)


def one(connection: Connection, **options: Any) -> None:
    penstock.publish(connection, TOPIC, b"x", **options)


def in_batch(connection: Connection, **options: Any) -> None:
    penstock.publish_batch(connection, [Message(TOPIC, b"x", **options)])


def in_bulk(connection: Connection, **options: Any) -> None:
    with connection.transaction():
        penstock.publish_bulk(connection, [Message(TOPIC, b"x", **options)])


WAYS = pytest.mark.parametrize("way", [one, in_batch, in_bulk])
Way = Callable[..., None]


def column(connection: Connection, name: str) -> list[Any]:
    rows = connection.execute(f"SELECT {name} FROM penstock.events ORDER BY id".encode())
    return [row[0] for row in rows.fetchall()]


@WAYS
def test_a_time_in_the_future_is_kept(connection: Connection, way: Way) -> None:
    way(connection, not_before=LATER)
    way(connection, not_before=LATER.astimezone(timezone(timedelta(hours=5, minutes=45))))
    way(connection, not_before=datetime(1970, 1, 1, tzinfo=UTC))
    way(connection)
    assert column(connection, "due_at") == [LATER, LATER, None, None]


@WAYS
def test_a_delay_beyond_the_longest_is_refused(connection: Connection, way: Way) -> None:
    far = datetime.now(UTC) + timedelta(days=31)
    for moment in (far, datetime(9999, 12, 31, tzinfo=UTC)):
        with pytest.raises(InvalidArgument, match="longest_delay_seconds"):
            way(connection, not_before=moment)
    assert column(connection, "due_at") == []
    seconds = 40 * 86_400
    database.call(connection, "set_setting", name="longest_delay_seconds", value=seconds)
    way(connection, not_before=far)
    assert column(connection, "due_at") == [far]


@WAYS
def test_what_is_for_relays_travels_in_the_headers(connection: Connection, way: Way) -> None:
    way(connection, exchange="e", routing_key="r", max_attempts=3, headers={"own": 1})
    way(connection, routing_key="")
    assert column(connection, "headers") == [
        {
            "own": 1,
            "penstock-exchange": "e",
            "penstock-routing-key": "r",
            "penstock-max-attempts": 3,
        },
        {"penstock-routing-key": ""},
    ]


BAD: dict[str, dict[str, Any]] = {
    "not_before is text": {"not_before": "2026-01-01"},
    "not_before has no zone": {"not_before": datetime(2026, 1, 1)},
    "dedup key is a number": {"dedup_key": 7},
    "dedup key of 256": {"dedup_key": "d" * 256},
    "exchange is bytes": {"exchange": b"e"},
    "routing key with NUL": {"routing_key": "a\0"},
    "no attempt": {"max_attempts": 0},
    "too many attempts": {"max_attempts": 1_001},
    "attempts are a bool": {"max_attempts": True},
}


@WAYS
def test_bad_options_are_refused_before_anything_is_sent(
    connection: Connection, database_url: str, way: Way, subtests: pytest.Subtests
) -> None:
    with psycopg.connect(database_url) as own:
        own.execute("CREATE TABLE ledger (id int)")
        for case, options in BAD.items():
            with subtests.test(case), pytest.raises(InvalidArgument) as caught:
                way(own, **options)
            assert caught.value.hint
        own.commit()
    assert column(connection, "id") == []
    connection.execute("SELECT FROM ledger")


def test_bulk_refuses_what_it_does_not_know(connection: Connection) -> None:
    with pytest.raises(InvalidArgument, match="event 0: publish_bulk does not support dedup keys"):
        in_bulk(connection, dedup_key="a")


def test_strict_is_a_switch(connection: Connection) -> None:
    message = Message(TOPIC, b"x")
    for publish_strictly in (
        lambda: penstock.publish_once(connection, message, strict="yes"),  # type: ignore[arg-type]
        lambda: penstock.publish_batch(connection, [message], strict=1),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgument, match="strict is a"):
            publish_strictly()


@pytest.fixture(scope="module")
def tracer() -> trace.Tracer:
    return TracerProvider().get_tracer("tests")


@pytest.fixture
def span(tracer: trace.Tracer) -> Iterator[trace.Span]:
    with tracer.start_as_current_span("work") as started:
        yield started


def _traceparent(span: trace.Span) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@WAYS
def test_the_current_span_is_carried(connection: Connection, span: trace.Span, way: Way) -> None:
    way(connection, headers={"own": 1})
    way(connection)
    expected = {"traceparent": _traceparent(span)}
    assert column(connection, "headers") == [{"own": 1, **expected}, expected]


@WAYS
def test_what_the_caller_gave_stays(connection: Connection, span: trace.Span, way: Way) -> None:
    own = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-00"}
    way(connection, headers=own)
    way(connection, headers={"tracestate": "a=b"})
    assert column(connection, "headers") == [own, {"tracestate": "a=b"}]


def test_the_state_of_a_trace_is_carried_too(connection: Connection, tracer: trace.Tracer) -> None:
    context = trace.SpanContext(
        1, 2, is_remote=True, trace_flags=trace.TraceFlags(1),
        trace_state=trace.TraceState([("vendor", "value")]),
    )  # fmt: skip
    parent = trace.set_span_in_context(trace.NonRecordingSpan(context))
    with tracer.start_as_current_span("work", context=parent):
        one(connection)
    (headers,) = column(connection, "headers")
    assert headers["tracestate"] == "vendor=value"


def test_without_a_span_nothing_is_added(connection: Connection) -> None:
    one(connection)
    assert column(connection, "headers") == [None]


def test_opentelemetry_is_not_imported_by_publishing() -> None:
    """Guard: the look into sys.modules."""
    code = (
        "import sys, penstock\n"
        "from penstock.publishing import rows\n"
        "rows.row(penstock.Message('a/b', b'x'))\n"
        "print(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def _nested(opening: str, levels: int, inner: str, closing: str) -> str:
    text = opening * levels + inner + closing * levels
    if opening == "[":
        text = '{"a":' + text + "}"
    return f"headers => '{text}'"


#: As plain SQL gives them: what is at a limit, and what is beyond it.
_RULES: dict[str, tuple[str, str | None]] = {
    "key of 255": ("key => repeat('ä', 255)", None),
    "key of 256": ("key => repeat('ä', 256)", "PS006"),
    "type of 256": ("type => repeat('t', 256)", "PS006"),
    "content type of 256": ("content_type => repeat('t', 256)", "PS006"),
    "no type": ("type => NULL, content_type => NULL", None),
    "headers of 32 levels": (_nested('{"a":', 32, '1', '}'), None),
    "headers of 33 levels": (_nested('{"a":', 33, '1', '}'), "PS006"),
    "32 short levels": (_nested('[', 32, '', ']'), None),
    "33 short levels": (_nested('[', 33, '', ']'), "PS006"),
    "a number of 400 digits": ("headers => ('{\"a\":' || repeat('9', 400) || '}')::jsonb", None),
    "a number of 401 digits": ("headers => '{\"a\":1e400}'", "PS006"),
    "headers are a list": ("headers => '[]'", "PS006"),
    "headers are null": ("headers => 'null'", "PS006"),
    "large headers": ("headers => jsonb_build_object('a', repeat('x', 60000))", None),
    "too large headers": ("headers => jsonb_build_object('a', repeat('x', 66000))", "PS006"),
    "last partition": ("partition => 3", None),
    "no such partition": ("partition => 4", "PS005"),
    "negative partition": ("partition => -1", "PS005"),
    "no payload": ("payload => NULL", "PS006"),
    "largest payload": ("payload => repeat('x', 1048576)::bytea", None),
    "too large a payload": ("payload => repeat('x', 1048577)::bytea", "PS004"),
    "unknown topic": ("topic => 'bank/nothing'", "PS002"),
    "no topic": ("topic => NULL", "PS002"),
    "infinite delay": ("not_before => 'infinity'", "PS006"),
    "since ever": ("not_before => '-infinity'", None),
    "strict is NULL": ("strict => NULL", None),
    "dedup key of 256": ("dedup_key => repeat('d', 256)", "PS006"),
}  # fmt: skip


def test_the_database_checks_for_itself(connection: Connection, subtests: pytest.Subtests) -> None:
    """Guard: publish lets nothing through its short way that event_problem would refuse."""
    for case, (arguments, expected) in _RULES.items():
        given = {"topic": f"topic => '{TOPIC}'", "payload": "payload => 'x'"}
        given[arguments.split(" ", 1)[0]] = arguments
        call = f"SELECT event_id, duplicate FROM penstock.publish({', '.join(given.values())})"
        with subtests.test(case):
            state = None
            try:
                row = connection.execute(call.encode()).fetchone()
                assert row is not None
                assert row[1] is False
            except psycopg.Error as error:
                state = error.sqlstate
            assert state == expected
    refused = sum(expected is not None for _, expected in _RULES.values())
    assert len(column(connection, "id")) == len(_RULES) - refused


def test_without_its_checks_the_short_way_lets_through(connection: Connection) -> None:
    """Mutant: publish finds every key short enough."""
    without_guard(connection, "publish", "<= 255", "< 1000")
    connection.execute("SELECT penstock.publish(%s, 'x', repeat('k', 256))", (TOPIC,))
    assert len(column(connection, "id")) == 1


#: Of two events the second is wrong.
_BATCH = (
    "SELECT penstock.publish_batch(ARRAY[%s, 'no/topic'], ARRAY['a', 'b']::bytea[],"
    " NULL, NULL, NULL, NULL, NULL, NULL)"
)


def test_a_refused_batch_publishes_nothing(connection: Connection) -> None:
    """Guard: publish_batch counts what was right; event_problem is asked for every event."""
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(_BATCH, (TOPIC,))
    assert caught.value.sqlstate == "PS002"
    assert column(connection, "id") == []


def test_without_the_check_half_a_batch_is_written(connection: Connection) -> None:
    """Mutant: publish_batch does not ask whether all of its events were right."""
    complete = "published + cardinality(duplicates) < cardinality(publish_batch.topics)"
    without_guard(connection, "publish_batch", complete, "false")
    connection.execute(_BATCH, (TOPIC,))
    assert len(column(connection, "id")) == 1


def test_arrays_of_other_lengths_are_refused(connection: Connection) -> None:
    """Guard: publish_batch compares their lengths with the topics'."""
    call = "SELECT penstock.publish_batch({}, {}, {}, NULL, NULL, NULL, NULL, NULL)"
    topics, payloads = f"ARRAY['{TOPIC}', '{TOPIC}']", "ARRAY['a', 'b']::bytea[]"
    for given, place in (
        ((topics, "ARRAY['a']::bytea[]", "NULL"), 1),
        ((f"ARRAY['{TOPIC}']", payloads, "NULL"), 1),
        ((topics, payloads, "ARRAY['a', 'b', 'c']"), 2),
        (("NULL", payloads, "NULL"), 0),
    ):
        with pytest.raises(psycopg.Error, match=f"event {place} for topic"):
            connection.execute(call.format(*given).encode())
    assert column(connection, "id") == []


def test_a_topic_with_a_strategy_of_its_publishers(connection: Connection) -> None:
    penstock.create_topic(connection, "bank/own", 8, strategy="client:last-digit")
    penstock.create_topic(connection, "bank/explicit", 8, strategy="explicit")
    ways: tuple[Callable[[Message], Any], ...] = (
        lambda message: penstock.publish_once(connection, message),
        lambda message: penstock.publish_batch(connection, [message]),
        lambda message: _bulk(connection, message),
    )
    penstock.register_strategy("last-digit", lambda key, count: int((key or "0")[-1]) % count)
    for way in ways:
        way(Message("bank/own", b"x", key="account 7"))
        way(Message("bank/own", b"x", key="account 7", partition=2))
        way(Message("bank/explicit", b"x", partition=5))
        with pytest.raises(InvalidPartition):
            way(Message("bank/explicit", b"x"))
        with pytest.raises(PayloadTooLarge):
            way(Message("bank/own", bytes(1_048_577), key="7"))
    assert column(connection, "partition_id & 65535") == [7, 2, 5] * 3


def _bulk(connection: Connection, message: Message) -> None:
    with connection.transaction():
        penstock.publish_bulk(connection, [message])
