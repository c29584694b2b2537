"""What the Kafka sink checks before it sends: topics, limits, rights, logins."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from ops.sinks import kafka_client
from ops.sinks.base import EventRefused, SinkMisconfigured, SinkUnavailable
from ops.sinks.kafka import KafkaSink
from ops.sinks.kafka_tail import GROUP
from penstock.errors import ConfigurationError
from tests.relay.blocks import block, event
from tests.relay.kafka import KafkaBroker, lease_of
from tools.servers.kafka import USERS

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

ENVIRON = {"PENSTOCK_KAFKA_USERNAME": "relay", "PENSTOCK_KAFKA_PASSWORD": USERS["relay"]}


def with_login(broker: KafkaBroker, environ: dict[str, str], options: str = "") -> KafkaSink:
    """A sink that comes to the listener that asks for a login."""
    return broker.sink(f"kafka://{broker.server.login_url()}/p?create=true{options}", environ)


def send(sink: KafkaSink, topic: str) -> None:
    """Three events."""
    one = block(1, 3, topic=topic)
    with closing(sink.open(lease_of(one))) as channel:
        channel.send_block(one)


def test_preflight_compares_the_partitions(kafka_broker: KafkaBroker, topic: str) -> None:
    address = kafka_broker.address.replace("?create=true", "")
    with pytest.raises(SinkMisconfigured, match="does not exist") as told:
        kafka_broker.sink(address).preflight(topic, 2)
    assert "--create --topic p.bank.accounts" in str(told.value.hint)
    kafka_broker.sink().preflight(topic, 2)
    kafka_broker.sink(address).preflight(topic, 2)
    with pytest.raises(SinkMisconfigured, match="2 partitions instead of 3") as told:
        kafka_broker.sink().preflight(topic, 3)
    assert "--alter" in str(told.value.hint)
    with pytest.raises(SinkMisconfigured, match="2 partitions instead of 1") as told:
        kafka_broker.sink().preflight(topic, 1)
    assert "another prefix" in str(told.value.hint)
    with pytest.raises(SinkMisconfigured, match="takes no topic of the name"):
        kafka_broker.sink().preflight("bank/" + "x" * 250, 1)


def test_a_compacted_topic_takes_no_event_without_a_key(
    kafka_broker: KafkaBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(kafka_broker.sink()) as sink:
        sink.preflight(topic, 1)
        kafka_broker.configure(sink.settings.topic(topic), cleanup_policy="compact")
        sink.preflight(topic, 1)
        assert "of each key the last event stays" in caplog.text
        assert "min.insync.replicas 1" in caplog.text
        sink.preflight(topic, 1)  # as for each partition that is new
        assert caplog.text.count("of each key the last event stays") == 1
        events = (event(1, topic=topic), event(2, topic=topic, key=None))
        one = block(1, 2, topic=topic, events=events)
        with (
            closing(sink.open(lease_of(one))) as channel,
            pytest.raises(EventRefused, match="no key"),
        ):
            channel.send_block(one)


def test_a_login_sends(kafka_broker: KafkaBroker, topic: str) -> None:
    with closing(with_login(kafka_broker, ENVIRON)) as sink:
        sink.preflight(topic, 1)
        send(sink, topic)
        assert kafka_broker.sequences(sink.settings.topic(topic)) == [1, 2, 3]


@pytest.mark.parametrize("when", ["preflight", "later"])
def test_a_login_that_is_wrong_or_has_expired(
    kafka_broker: KafkaBroker, topic: str, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    """It is told at once what to check, and the password stands in no text and no log."""
    caplog.set_level(logging.DEBUG)
    wrong = ENVIRON | {"PENSTOCK_KAFKA_PASSWORD": "hunter2-hunter2"}
    with (
        closing(with_login(kafka_broker, wrong)) as sink,
        pytest.raises(SinkMisconfigured, match="AUTHENTICATION") as told,
    ):
        if when == "preflight":
            sink.preflight(topic, 1)
        else:
            send(sink, topic)
    assert "PENSTOCK_KAFKA_PASSWORD" in str(told.value.hint)
    assert "hunter2" not in f"{told.value!r} {told.value} {caplog.text} {sink.settings!r}"


def test_rights_that_are_missing_are_named(kafka_broker: KafkaBroker, topic: str) -> None:
    with closing(with_login(kafka_broker, ENVIRON)) as sink:
        sink.preflight(topic, 1)
        name = sink.settings.topic(topic)
        kafka_broker.allow("relay", name, AclOperation.DESCRIBE)
        with pytest.raises(SinkMisconfigured, match="lacks READ, WRITE") as told:
            sink.preflight(topic, 1)
        assert "DESCRIBE_CONFIGS" in str(told.value.hint)
        with pytest.raises(SinkMisconfigured, match="TOPIC_AUTHORIZATION_FAILED"):
            send(sink, topic)
        kafka_broker.allow("relay", name, AclOperation.READ, AclOperation.WRITE)
        sink.preflight(topic, 1)
        # No right on a group is needed: nothing is joined and nothing is committed there.
        kafka_broker.allow("other", GROUP, AclOperation.READ, kind=ResourceType.GROUP)
        send(sink, topic)
        kafka_broker.allow("other", name, AclOperation.ALL)
    other = {"PENSTOCK_KAFKA_USERNAME": "other", "PENSTOCK_KAFKA_PASSWORD": USERS["other"]}
    with closing(with_login(kafka_broker, other)) as sink:
        sink.preflight(topic, 1)


def test_client_settings_come_from_a_file(
    kafka_broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text(
        "# a login, and a setting\n\nsecurity.protocol = SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f"sasl.username=relay\nsasl.password={USERS['relay']}\nclient.id=a-relay\n"
    )
    with closing(with_login(kafka_broker, {}, f"&settings={settings}")) as sink:
        sink.preflight(topic, 1)
        send(sink, topic)
    settings.write_text("no.such.setting=1\n")
    with pytest.raises(SinkMisconfigured, match=r"no\.such\.setting"):
        with_login(kafka_broker, {}, f"&settings={settings}").preflight(topic, 1)
    settings.write_text("a line\n")
    with pytest.raises(ConfigurationError, match="is no line NAME=VALUE"):
        with_login(kafka_broker, {}, f"&settings={settings}")
    settings.write_text("acks=1\n")
    with pytest.raises(ConfigurationError, match="sets acks, which the relay sets itself"):
        with_login(kafka_broker, {}, f"&settings={settings}")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        with_login(kafka_broker, {}, f"&settings={tmp_path}/none")


def test_a_broker_that_is_away_is_tried_again_later(
    kafka_broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_client, "ANSWER_SECONDS", 0.2)
    with (
        closing(kafka_broker.sink("kafka://127.0.0.1:9/p")) as sink,
        pytest.raises(SinkUnavailable, match="TIMED_OUT"),
    ):
        sink.preflight(topic, 1)
