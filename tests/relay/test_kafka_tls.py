"""Relays to a Kafka that wants TLS and a login: a password, SCRAM, a token."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from ops.sinks.base import SinkMisconfigured, SinkUnavailable
from ops.sinks.kafka import KafkaSink
from penstock.errors import PenstockError
from tests.kit import certificates
from tests.relay.blocks import block
from tests.relay.kafka import SECONDS, KafkaBroker, lease_of
from tests.support import missing
from tools.servers import KafkaServer
from tools.servers.kafka import USERS

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(300)]

SECRET = "hunter2-hunter2"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the certificates are."""
    return tmp_path_factory.mktemp("kafka-tls")


@pytest.fixture(scope="module")
def secure(folder: Path) -> Iterator[KafkaBroker]:
    """A Kafka with a certificate that nobody else knows, and a user for each kind of SCRAM."""
    made = certificates.make(folder)
    server = KafkaServer(folder / "server", tls=(*made.server, made.authority))
    try:
        server.start()
    except PenstockError as error:
        missing("Kafka", error)
    broker = KafkaBroker(server)
    kinds = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    wanted = [
        UserScramCredentialUpsertion("scram", ScramCredentialInfo(kind, 4096), SECRET.encode())
        for kind in kinds
    ]
    for each in wanted:
        for done in broker.admin.alter_user_scram_credentials([each]).values():
            done.result(SECONDS)
    yield broker
    server.stop()


def token(seconds: int) -> str:
    """A token that ends so many seconds from now; nobody has signed it."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": "relay", "iat": now - 3600, "exp": now + seconds})
    texts = [base64.urlsafe_b64encode(json.dumps(each).encode()).decode() for each in parts]
    return ".".join([each.rstrip("=") for each in texts]) + "."


def sink(
    broker: KafkaBroker,
    folder: Path,
    environ: dict[str, str],
    options: str = "",
    trust: bool = True,
) -> KafkaSink:
    """A sink at the listener with TLS."""
    settings = folder / f"client-{next(_numbers)}.properties"
    settings.write_text(f"ssl.ca.location={folder}/authority.pem\n" if trust else "client.id=a\n")
    address = f"kafka+ssl://{broker.server.secure_url()}/p?create=true&settings={settings}{options}"
    return broker.sink(address, environ)


def login(name: str, password: str) -> dict[str, str]:
    """In the environment."""
    return {"PENSTOCK_KAFKA_USERNAME": name, "PENSTOCK_KAFKA_PASSWORD": password}


LOGINS: dict[str, tuple[dict[str, str], str]] = {
    "a password": (login("relay", USERS["relay"]), ""),
    "SCRAM-SHA-256": (login("scram", SECRET), "&mechanism=SCRAM-SHA-256"),
    "SCRAM-SHA-512": (login("scram", SECRET), "&mechanism=SCRAM-SHA-512"),
    "a token": ({"PENSTOCK_KAFKA_TOKEN": token(3600)}, ""),
}


@pytest.mark.parametrize("kind", LOGINS)
def test_each_login_sends(kind: str, secure: KafkaBroker, folder: Path, topic: str) -> None:
    environ, options = LOGINS[kind]
    one = block(1, 20, topic=topic)
    with closing(sink(secure, folder, environ, options)) as made:
        made.preflight(topic, 1)
        with closing(made.open(lease_of(one))) as channel:
            channel.send_block(one)
            assert secure.sequences(made.settings.topic(topic)) == list(range(1, 21))


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "a password": (login("relay", "wr0ng-wr0ng"), ""),
    "SCRAM": (login("scram", "wr0ng-wr0ng"), "&mechanism=SCRAM-SHA-512"),
    "a token that has expired": ({"PENSTOCK_KAFKA_TOKEN": token(-60)}, ""),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_login_that_is_refused_is_told(
    kind: str, secure: KafkaBroker, folder: Path, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    environ, options = REFUSED[kind]
    with (
        closing(sink(secure, folder, environ, options)) as made,
        pytest.raises(SinkMisconfigured, match="AUTHENTICATION") as told,
    ):
        made.preflight(topic, 1)
    secret = environ.get("PENSTOCK_KAFKA_TOKEN", "wr0ng-wr0ng")
    assert secret not in f"{told.value!r} {told.value} {told.value.hint} {caplog.text}"
    assert "PENSTOCK_KAFKA_TOKEN" in (told.value.hint or "")


def test_a_server_whose_authority_is_not_known_is_not_trusted(
    secure: KafkaBroker, folder: Path, topic: str
) -> None:
    environ, _ = LOGINS["a password"]
    with (
        closing(sink(secure, folder, environ, trust=False)) as made,
        pytest.raises((SinkMisconfigured, SinkUnavailable), match=r"(?i)ssl") as told,
    ):
        made.preflight(topic, 1)
    assert USERS["relay"] not in f"{told.value} {told.value.hint}"
