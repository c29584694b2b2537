"""A Pulsar broker under test: sinks on it, what its topics hold, its admin interface."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from typing import Any

import pulsar

from ops.sinks.pulsar import PulsarSink
from tools.pulsar import PulsarStandalone


@dataclass(frozen=True)
class Broker:
    """A broker under test."""

    standalone: PulsarStandalone

    @property
    def address(self) -> str:
        """The broker as a relay is given it; a missing Pulsar topic is made."""
        admin = self.standalone.admin_url
        return f"{self.standalone.service_url}/public/default?admin={admin}&create=true"

    def sink(self, **options: Any) -> PulsarSink:
        """A sink on this broker."""
        given: dict[str, Any] = {"create": True, "send_timeout_seconds": 15}
        return PulsarSink(
            self.standalone.service_url, admin_url=self.standalone.admin_url, **given | options
        )

    def admin(self, method: str, path: str, value: Any = None) -> None:
        """One call of the admin interface."""
        request = urllib.request.Request(
            f"{self.standalone.admin_url}/admin/v2/{path}",
            data=None if value is None else json.dumps(value).encode(),
            method=method,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20):
            pass

    def read(self, pulsar_topic: str, partition: int) -> list[pulsar.Message]:
        """Every message of a partition, in the order in which it lies there."""
        client = pulsar.Client(self.standalone.service_url, logger=quiet())
        try:
            reader = client.create_reader(
                f"{pulsar_topic}-partition-{partition}",
                pulsar.MessageId.earliest,
                receiver_queue_size=10_000,
            )
            found = []
            while reader.has_message_available():
                found.append(reader.read_next(20_000))
            return found
        finally:
            client.close()

    def sequences(self, pulsar_topic: str, partition: int) -> list[int]:
        """The sequences of a partition, in the order in which they lie there."""
        return [int(m.properties()["ce_sequence"]) for m in self.read(pulsar_topic, partition)]


def quiet() -> Any:
    """A logger for clients whose errors are looked at in the test."""
    return pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
