"""Apache Pulsar, exactly once: one Penstock partition to one Pulsar partition, in recorded blocks.

Broker deduplication alone is not enough for batches: the broker remembers the lowest sequence id of
a batch, so a successor that cuts its batches elsewhere loses and doubles events.  Here a block is
one batch, recorded before it is sent, and a successor sends the very same batch again, which the
broker keeps or drops whole:

* no timer and no limit of the client cuts a batch; only a block above `BATCH_BYTES` is cut, always
  at the same places, and then each piece is kept or dropped whole;
* the producer's name holds relay, topic (under its permanent name), partition and history, so the
  broker knows a successor by it, and mistakes neither a restored log, whose sequences begin anew,
  nor another topic of the same address for the old one;
* producers are exclusive with fencing: the successor of a paused relay takes over at once
  (measured: 0.03 s; a shared name waits 5 s until the broker finds the old connection dead), and
  what the paused one sends later is refused, even after the broker has forgotten its sequence ids
  (`brokerDeduplicationProducerInactivityTimeoutMinutes`);
* for the same reason the sink reads the partition's last message before it sends a block again, and
  does not send what Pulsar holds already;
* a block that was open when a history began may have been sent under the producer name of the
  history before: the partition's last message tells that, too;
* when Pulsar holds later sequences than the block, or another event under one of its sequences, the
  relay stops with an error: the database has lost commits, or the subscription was created again or
  moved back, and going on would silently lose events.

With ``batching=False`` each event is its own message, which Key_Shared subscriptions need.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit

import pulsar

from ops.sinks.base import SinkLease, SinkMisconfigured
from ops.sinks.options import flag, options_of
from ops.sinks.pulsar_admin import DEFAULT_MAX_MESSAGE_BYTES, PulsarAdmin
from ops.sinks.pulsar_channel import BATCH_BYTES, PulsarChannel
from penstock.errors import ConfigurationError

TOKEN_VARIABLE = "PENSTOCK_PULSAR_TOKEN"
_ENVELOPE_BYTES = 10_240  # how much of the broker's limit the protocol uses itself
_OPERATION_SECONDS = 15


class PulsarSink:
    """Sends each partition of a topic to the partition of the same number of a Pulsar topic."""

    name = "pulsar"
    max_block_events = 5_000
    # The rest of a batch is properties: about half a kilobyte for each event.
    max_block_bytes = BATCH_BYTES // 2

    def __init__(
        self,
        service_url: str,
        *,
        admin_url: str,
        topic: str = "persistent://public/default/{topic}",
        topics: Mapping[str, str] | None = None,
        batching: bool = True,
        create: bool = False,
        token: str | None = None,
        send_timeout_seconds: float = 30,
        client_log: str = os.devnull,
    ) -> None:
        self.service_url = service_url
        self.batching = batching
        self._admin = PulsarAdmin(admin_url, token)
        self._template = topic
        self._topics = dict(topics or {})
        # The first address of each Pulsar topic that is named: asked for every event of a template.
        self._named = {self._topics[each]: each for each in sorted(self._topics, reverse=True)}
        self._create = create
        self._token = token
        self._send_timeout = send_timeout_seconds
        self._client_log = client_log
        self._client: Any = None
        self._connecting = threading.Lock()
        self._limit = DEFAULT_MAX_MESSAGE_BYTES - _ENVELOPE_BYTES

    def pulsar_topic(self, topic: str) -> str:
        """The Pulsar topic of a Penstock topic.

        It is from `topics`, else from the pattern, with `/` as `.`.
        """
        return self._topics.get(topic) or self._template.format(topic=topic.replace("/", "."))

    def address_of(self, topic: str) -> str:
        """One address for all that are the same Pulsar topic."""
        target, dotted = self.pulsar_topic(topic), topic.replace("/", ".")
        return self._named.get(target) or (dotted if self.pulsar_topic(dotted) == target else topic)

    def preflight(self, topic: str, partitions: int) -> None:
        """Check that the Pulsar topic has as many partitions and that the broker deduplicates.

        With ``create`` a missing topic is created this way.
        """
        target = self.pulsar_topic(topic)
        found = self._admin.partitions(target)
        if found is None:
            self._admin.require_namespace(target)
        if found is None and self._create:
            self._admin.create(target, partitions)
            found = self._admin.partitions(target)
        _require_partitions(target, found, partitions)
        if not self._admin.deduplicates(target):
            raise _deduplication_off(target)
        self._limit = self._admin.max_message_bytes() - _ENVELOPE_BYTES

    def open(self, lease: SinkLease) -> PulsarChannel:
        """A channel, which makes its producer when it is needed."""
        return PulsarChannel(
            lease,
            self._connected,
            self._target,
            batching=self.batching,
            limit=self._limit,
            send_timeout=self._send_timeout,
        )

    def close(self) -> None:
        """Close the client: its threads must not outlive the interpreter."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(pulsar.PulsarException):
                client.close()

    def _target(self, topic: str, partition: int) -> str:
        return f"{self.pulsar_topic(topic)}-partition-{partition}"

    def _connected(self) -> Any:
        with self._connecting:
            if self._client is None:
                token = self._token
                self._client = pulsar.Client(
                    self.service_url,
                    authentication=None if token is None else pulsar.AuthenticationToken(token),
                    operation_timeout_seconds=_OPERATION_SECONDS,
                    logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, self._client_log),
                )
            return self._client


def open_sink(parts: SplitResult, *, environ: Mapping[str, str], beside: str) -> PulsarSink:
    """The sink of `pulsar://HOST:PORT/TENANT/NAMESPACE?admin=URL`."""
    if not parts.netloc:
        raise ConfigurationError("the Pulsar address names no host")
    options = options_of(parts, ("admin", "batching", "create"), "Pulsar")
    if "admin" not in options:
        raise ConfigurationError(
            "the Pulsar address names no admin interface: add admin= (in a shell, put the whole "
            "address in quotes)"
        )
    admin = urlsplit(options["admin"])
    if admin.scheme not in {"http", "https"} or not admin.netloc:
        raise ConfigurationError(
            "the Pulsar address has an admin= that is no http:// or https:// address"
        )
    namespace = parts.path.strip("/") or "public/default"
    return PulsarSink(
        f"{parts.scheme}://{parts.netloc}",
        admin_url=options["admin"],
        topic=f"persistent://{namespace}/{{topic}}" + (f".{beside}" if beside else ""),
        batching=flag(options, "batching", "Pulsar", default=True),
        create=flag(options, "create", "Pulsar", default=False),
        token=environ.get(TOKEN_VARIABLE) or None,
    )


def _require_partitions(target: str, found: int | None, wanted: int) -> None:
    if found is None:
        raise SinkMisconfigured(
            f"the Pulsar topic {target} does not exist",
            hint=f"run: pulsar-admin topics create-partitioned-topic -p {wanted} {target}",
        )
    if found == 0:
        raise SinkMisconfigured(
            f"the Pulsar topic {target} has no partitions",
            hint="name another Pulsar topic for the relay",
        )
    if found != wanted:
        raise SinkMisconfigured(
            f"the Pulsar topic {target} has {found} partitions instead of {wanted}",
            hint=f"run: pulsar-admin topics update-partitioned-topic -p {wanted} {target}"
            if found < wanted
            else "name another Pulsar topic for the relay",
        )


def _deduplication_off(target: str) -> SinkMisconfigured:
    namespace = target.split("://", 1)[-1].rsplit("/", 1)[0]
    return SinkMisconfigured(
        f"deduplication is off for the Pulsar topic {target}: a repeated block would be doubled",
        hint=f"run: pulsar-admin namespaces set-deduplication --enable {namespace} "
        f"(or pulsar-admin topicPolicies set-deduplication --enable {target}, "
        "or set brokerDeduplicationEnabled=true in broker.conf)",
    )
