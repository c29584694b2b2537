"""Every missing Python package is reported in the same words, with the same exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

import penstock
from ops.sinks.address import open_sink
from penstock import archive, database
from penstock.cli import main
from penstock.database import config
from penstock.errors import MissingExtra
from penstock.leases.coordination import etcd, redis
from penstock.spark.avro_schemas import avro_schema

EXTRAS: dict[str, tuple[Callable[[], object], str]] = {
    "psycopg": (lambda: database.connect("postgresql://h/x"), "psycopg[binary]"),
    "pymysql": (lambda: database.connect("mysql://h/x"), "pymysql"),
    "redis": (lambda: redis._client("redis://h"), "redis"),
    "etcd3gw": (lambda: etcd._client("etcd://h"), "etcd3gw"),
    "fastavro": (lambda: avro_schema("{}"), "fastavro"),
    "pyarrow": (lambda: archive.read, "pyarrow"),
    "confluent_kafka": (lambda: open_sink("kafka://h:1"), "confluent-kafka"),
    "pulsar": (
        lambda: open_sink("pulsar://h:1/public/default?admin=http://h:1"),
        "pulsar-client",
    ),
    "nats": (lambda: open_sink("nats://h/s"), "nats-py"),
    "pika": (lambda: open_sink("amqp://h/?queue=q"), "pika"),
    "boto3": (lambda: open_sink("sqs://eu-central-1/events"), "boto3"),
}


def _without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """As if it were not installed: importing it, or a module that needs it, fails."""
    needs_it = {
        "confluent_kafka": [each for each in sys.modules if each.startswith("ops.sinks.kafka")],
        "pulsar": ["ops.sinks.pulsar", "ops.sinks.pulsar_channel", "ops.sinks.pulsar_producer"],
        "nats": ["ops.sinks.nats_connection", "ops.sinks.nats_jetstream"],
        "pika": ["ops.sinks.rabbitmq", "ops.sinks.rabbitmq_channel"],
        "boto3": ["ops.sinks.aws"],
        "pyarrow": ["penstock.archive.log_reader"],
    }
    for name in list(sys.modules):
        if name == package or name.startswith(f"{package}.") or name in needs_it.get(package, ()):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Hidden(package), *sys.meta_path])


class _Hidden:
    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == self._package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_package_is_a_typed_error(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    _without(monkeypatch, package)
    call, install = EXTRAS[package]
    with pytest.raises(MissingExtra) as caught:
        call()
    said = f"the Python package {package} is not installed. run: pip install '{install}'"
    assert str(caught.value) == said


def test_a_table_without_pyarrow_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "pyarrow")
    with pytest.raises(MissingExtra, match="pip install 'pyarrow'"):
        penstock.publish_table(None, "bank/accounts", None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("package", "url"),
    [("psycopg", "postgresql://h/x"), ("pymysql", "mysql://h/x"), ("typer", "postgresql://h/x")],
)
def test_the_command_exits_alike(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str, url: str
) -> None:
    _without(monkeypatch, package)
    if package == "typer":
        for name in [name for name in sys.modules if name.startswith("penstock.cli.")]:
            if name not in {"penstock.cli.main", "penstock.cli.exit_codes"}:
                monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv(config.URL_VARIABLE, url)
    assert main.run(["topic", "list"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"penstock: the Python package {package} is not installed. run: pip ")
    assert said.count("\n") == 1
