"""The tests' Kafka: joined, found again, restarted with its data, fetched with a hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tools.servers import KafkaServer, ServerUnavailable, catalogue, jars
from tools.servers.kafka import JARS

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


def test_a_second_start_joins_the_first(kafka_server: KafkaServer) -> None:
    assert kafka_server.start() is False
    other = catalogue.in_folder(kafka_server.directory / "server.json")
    assert isinstance(other, KafkaServer)
    assert other.start() is False
    assert other.url() == kafka_server.url() != other.login_url()
    assert catalogue.fetch("kafka").count(".") == 2


@pytest.mark.long
def test_a_killed_broker_goes_on_with_its_data_on_its_port(kafka_server: KafkaServer) -> None:
    address = kafka_server.url()
    settings: dict[str, Any] = {"bootstrap.servers": address}
    admin = AdminClient(settings)
    admin.create_topics([NewTopic("kept", 1)])["kept"].result(30)
    producer = Producer(settings)
    producer.produce("kept", b"one")
    assert producer.flush(30) == 0
    kafka_server.kill()
    assert kafka_server.pid is None
    kafka_server.start()
    assert kafka_server.url() == address
    reader = Consumer(settings | {"group.id": "unused"})
    reader.assign([TopicPartition("kept", 0, 0)])
    found = reader.poll(30)
    reader.close()
    assert found is not None
    assert found.value() == b"one"


def test_without_maven_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "copy_jars", _fails)
    with pytest.raises(ServerUnavailable, match="no Maven"):
        JARS.root(tmp_path)
    assert not JARS.fetched(tmp_path)


def _fails(*_: object) -> None:
    raise ServerUnavailable("no Maven")
