"""A relay on an earlier state of the log than its sink has seen stops before it sends.

The earlier state is a clone of the database, which from inside looks like the database itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ops.relay.block import Backoff
from ops.relay.relay import Relay
from ops.relay.results import RelayResult
from ops.sinks.base import Sink
from ops.sinks.jsonl import JsonlSink
from penstock import log
from penstock.errors import LogBehind
from penstock.log.histories import reconcile, restore_status
from penstock.subscriptions import stream
from tests.kit.log import drain, put, topic
from tests.kit.sinks import Alone
from tests.kit.storage import many
from tests.relay.kafka import KafkaBroker
from tests.relay.pulsar_broker import Broker
from tests.support import PostgresServer

FAST = Backoff(base_seconds=0.01, max_seconds=0.05)
SUBSCRIPTION = "to-the-sink"
TOPIC = "bank/restored"
KNOWN_AS = f"{TOPIC}//1"

Clone = Callable[[str], str]


@pytest.fixture
def clone(postgres_server: PostgresServer) -> Iterator[Clone]:
    """Copies a database that nobody is connected to."""
    made: list[str] = []

    def make(url: str) -> str:
        name = url.rpartition("/")[2]
        made.append(f"{name}_copy")
        return postgres_server.create(made[-1], name)

    yield make
    for name in made:
        postgres_server.drop(name)


def _relay(url: str, sink: Sink, seconds: float = 60) -> RelayResult:
    """Until nothing is left; a relay that is stopped tries until its time is over."""
    return Relay(url, SUBSCRIPTION, sink, backoff=FAST).run_for(seconds)


def _earlier_state(url: str, clone: Clone, sink: Sink, name: str = TOPIC) -> str:
    """Fifty events were relayed when it was copied, and fifty more since; it has twenty others."""
    with psycopg.connect(url, autocommit=True) as connection:
        topic(connection, 1, name)
        stream.subscribe(connection, SUBSCRIPTION, [name])
        many(connection, 50, name=name)
        drain(connection)
    assert _relay(url, sink).events == 50
    copy = clone(url)
    with psycopg.connect(url, autocommit=True) as connection:
        many(connection, 50, name=name)
        drain(connection)
    assert _relay(url, sink).events == 50
    with psycopg.connect(copy, autocommit=True) as connection:
        for number in range(20):
            put(connection, f"other {number}", name=name)
        drain(connection)
    return copy


def _lines(sink: JsonlSink, history: int = 1) -> list[int]:
    lines = sink.path(KNOWN_AS, 0, history).read_bytes().splitlines()
    return [int(json.loads(line)["sequence"]) for line in lines]


def _judge(copy: str, result: RelayResult, source: str, name: str = TOPIC) -> None:
    """It has sent nothing, the partition is stopped for everybody, and reconciling mends it."""
    assert (result.events, result.drained) == (0, False)
    assert result.last_error.startswith("LogBehind")
    with psycopg.connect(copy, autocommit=True) as connection:
        (beyond,) = restore_status(connection)
        assert (beyond.sequence, beyond.history, beyond.high_watermark) == (100, 1, 70)
        assert beyond.source == source
        with pytest.raises(LogBehind):
            log.fetch(connection, name, 0, 1)
        reconcile(connection, "a test")


def test_the_file_sink_is_ahead_of_the_log(database_url: str, clone: Clone, tmp_path: Path) -> None:
    """Guards: Relay._compare, JsonlChannel.seen."""
    with closing(JsonlSink(tmp_path)) as sink:
        copy = _earlier_state(database_url, clone, sink)
        _judge(copy, _relay(copy, sink, 1), f'jsonl of the relay "{SUBSCRIPTION}"')
        assert _lines(sink) == list(range(1, 101))
        assert _relay(copy, sink).events == 20
        assert _lines(sink) == list(range(1, 101))
        assert _lines(sink, 2) == list(range(51, 71))
        assert _relay(copy, sink).last_error == ""


def test_without_the_comparison_nobody_is_stopped(
    database_url: str, clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the relay does not ask its sink."""
    monkeypatch.setattr(Relay, "_compare", lambda *_: None)
    with closing(JsonlSink(tmp_path)) as sink:
        copy = _earlier_state(database_url, clone, sink)
        assert "LogBehind" not in _relay(copy, sink, 1).last_error
    with psycopg.connect(copy, autocommit=True) as connection:
        assert restore_status(connection) == []


@pytest.mark.pulsar
@pytest.mark.timeout(900)
def test_pulsar_is_ahead_of_the_log(
    database_url: str,
    clone: Clone,
    broker: Broker,
    pulsar_sink: Callable[..., Alone],
    topic: str,
) -> None:
    """Guards: Relay._compare, PulsarChannel.seen."""
    sink = pulsar_sink()
    target = sink.pulsar_topic(topic)
    copy = _earlier_state(database_url, clone, sink, topic)
    _judge(copy, _relay(copy, sink, 10), f'pulsar of the relay "{SUBSCRIPTION}"', topic)
    assert broker.sequences(target, 0) == list(range(1, 101))
    assert _relay(copy, sink).events == 20
    assert broker.sequences(target, 0) == [*range(1, 101), *range(51, 71)]


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_kafka_is_ahead_of_the_log(
    database_url: str, clone: Clone, kafka_broker: KafkaBroker, topic: str
) -> None:
    """Guards: Relay._compare, KafkaChannel.seen."""
    with closing(kafka_broker.sink()) as sink:
        target = sink.settings.topic(topic)
        copy = _earlier_state(database_url, clone, sink, topic)
        _judge(copy, _relay(copy, sink, 2), f'kafka of the relay "{SUBSCRIPTION}"', topic)
        assert kafka_broker.sequences(target) == list(range(1, 101))
        assert _relay(copy, sink).events == 20
        assert kafka_broker.sequences(target) == [*range(1, 101), *range(51, 71)]


def test_what_a_file_sink_has_seen(tmp_path: Path) -> None:
    """The last whole line of the newest history; torn lines and strange names do not count."""
    sink = Alone(JsonlSink(tmp_path / "out"))
    assert sink.seen("any", "a/b", TOPIC, 0) is None
    (tmp_path / "out").mkdir()
    path = sink.path(TOPIC, 0)
    path.write_bytes(b"")
    assert sink.seen("any", "a/b", TOPIC, 0) is None
    long = json.dumps({"sequence": "12", "data": "x" * 200_000}).encode()
    path.write_bytes(b'{"sequence": "11"}\n' + long + b'\n{"sequence": "13')
    assert _seen(sink) == (12, 1)
    sink.path(TOPIC, 0, 2).write_bytes(b'{"sequence": "1')
    assert _seen(sink) == (12, 1)
    sink.path(TOPIC, 0, 10).write_bytes(b'{"sequence": "3"}\n')
    sink.path(TOPIC, 1, 11).write_bytes(b'{"sequence": "4"}\n')
    (tmp_path / "out" / f"{path.stem}.history-x.jsonl").write_bytes(b'{"sequence": "5"}\n')
    assert _seen(sink) == (3, 10)


def _seen(sink: Alone) -> Any:
    found = sink.seen("any", "a/b", TOPIC, 0)
    assert found is not None
    return found.sequence, found.history
