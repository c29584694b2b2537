"""The brokers to which blocks are sent, and the bare clients that send to them too."""

from __future__ import annotations

import asyncio
import functools
import http.client
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from ops.sinks.address import open_sink
from ops.sinks.base import Sink
from ops.sinks.cloudevents import CONTENT_TYPE, to_json, to_properties
from penstock import database
from penstock.database.migrate import migrate
from penstock.publishing.publish import publish_batch
from penstock.records import Event, Message
from penstock.topics import names
from resources.embedded import EmbeddedPostgres
from tools.servers import REDIS, StoreServer

PARTITIONS = 4
_CHUNK = 500
_BATCH = 2_000
_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

#: The events of each partition.
Records = Sequence[Sequence[Event]]


class Broker(ABC):
    """A broker of its own, and both ways to send to it."""

    #: One of so many events is enough, where a call has only one.
    fewer: ClassVar[int] = 1
    has_latency: ClassVar[bool] = False
    address: str
    sink: Sink

    @abstractmethod
    def __init__(self, folder: str, stack: ExitStack) -> None:
        """Start it; the stack stops it."""

    @abstractmethod
    def bare(self, topic: str, records: Records) -> float:
        """Send the records of each partition with the client alone.  Returns the seconds."""


class Kafka(Broker):
    """One node; the peer is one idempotent producer."""

    has_latency = True

    def __init__(self, folder: str, stack: ExitStack) -> None:
        from tools.servers import KafkaServer

        self._server = KafkaServer(folder)
        stack.callback(self._server.kill)
        self._server.start()
        self.address = f"kafka://{self._server.url()}/bench?create=true"
        self.sink = stack.enter_context(closing(open_sink(self.address)))

    def bare(self, topic: str, records: Records) -> float:
        from confluent_kafka import Producer

        producer: Any = Producer(
            {
                "bootstrap.servers": self._server.url(),
                "enable.idempotence": True,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 0,
                "log_level": 0,
            }
        )
        sink: Any = self.sink
        name = sink.settings.topic(topic)
        producer.list_topics(name, timeout=30)
        begun = perf_counter()
        for partition, part in enumerate(records):
            for event in part:
                producer.produce(
                    name,
                    event.payload,
                    key=event.key,
                    partition=partition,
                    headers=to_properties(event),
                )
        if producer.flush(120):
            raise RuntimeError("the bare producer did not finish")
        return perf_counter() - begun


class Pulsar(Broker):
    """A standalone; the peer is a producer for each partition with the client's batching."""

    has_latency = True

    def __init__(self, folder: str, stack: ExitStack) -> None:
        import pulsar

        from tools.pulsar import PulsarStandalone

        server = PulsarStandalone(Path(folder), die_with_parent=True)
        stack.callback(server.stop)
        server.start()
        self.address = f"{server.service_url}/public/default?admin={server.admin_url}&create=true"
        self.sink = stack.enter_context(closing(open_sink(self.address)))
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        self._client = pulsar.Client(server.service_url, logger=quiet)
        stack.callback(self._client.close)

    def bare(self, topic: str, records: Records) -> float:
        import pulsar

        name = f"persistent://public/default/{topic.replace('/', '.')}-partition-"
        producers = [
            self._client.create_producer(
                f"{name}{partition}",
                batching_enabled=True,
                block_if_queue_full=True,
                compression_type=pulsar.CompressionType.LZ4,
            )
            for partition in range(PARTITIONS)
        ]
        begun = perf_counter()
        for producer, part in zip(producers, records, strict=True):
            for event in part:
                producer.send_async(
                    event.payload,
                    _nothing,
                    properties=to_properties(event),
                    partition_key=event.key,
                )
        for producer in producers:
            producer.flush()
        spent = perf_counter() - begun
        for producer in producers:
            producer.close()
        return spent


class Redis(Broker):
    """A Redis that writes its log to disk; the peer sends XADD in pipelines of 500."""

    def __init__(self, folder: str, stack: ExitStack) -> None:
        def options(data: Path, port: int) -> list[str]:
            return [*REDIS.options(data, port), "--appendonly", "yes"]

        server = StoreServer(Path(folder), replace(REDIS, options=options))
        stack.enter_context(server)
        self.address = f"redis://127.0.0.1:{server.port}/bench"
        self.sink = stack.enter_context(closing(open_sink(self.address)))
        self._port = server.port or 0

    def bare(self, topic: str, records: Records) -> float:
        import redis

        with closing(redis.Redis(port=self._port)) as client:
            client.ping()
            begun = perf_counter()
            for partition, part in enumerate(records):
                for start in range(0, len(part), _CHUNK):
                    pipeline = client.pipeline(transaction=False)
                    for event in part[start : start + _CHUNK]:
                        fields: dict[Any, Any] = {**to_properties(event), "data": event.payload}
                        pipeline.xadd(f"bare:{topic}:{partition}", fields)
                    pipeline.execute()
            return perf_counter() - begun


class Nats(Broker):
    """A server with JetStream; the peer publishes without waiting, and then for all answers."""

    def __init__(self, folder: str, stack: ExitStack) -> None:
        from tools.servers.nats import NatsServer

        server = stack.enter_context(NatsServer(folder))
        self.address = f"nats://{server.address}/bench?create=true"
        self.sink = stack.enter_context(closing(open_sink(self.address)))
        self._server = f"nats://{server.address}"

    def bare(self, topic: str, records: Records) -> float:
        return asyncio.run(self._publish(f"bare-{topic.replace('/', '-')}", records))

    async def _publish(self, stream: str, records: Records) -> float:
        import nats

        client = await nats.connect(self._server)
        jetstream = client.jetstream(publish_async_max_pending=_BATCH)
        await jetstream.add_stream(name=stream, subjects=[f"{stream}.*"])
        begun = perf_counter()
        for partition, part in enumerate(records):
            for event in part:
                subject = f"{stream}.{partition}"
                await jetstream.publish_async(subject, event.payload, headers=to_properties(event))
        await jetstream.publish_async_completed()
        spent = perf_counter() - begun
        await client.close()
        return spent


class Http(Broker):
    """A receiver in a process of its own; the peer has a connection for each partition."""

    fewer = 20

    def __init__(self, folder: str, stack: ExitStack) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.http_receiver", "0"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        stack.enter_context(process)
        assert process.stdin is not None and process.stdout is not None
        stack.callback(process.stdin.close)
        self._port = int(process.stdout.readline())
        self.address = f"webhook+http://127.0.0.1:{self._port}/in"
        environ = {
            "PENSTOCK_WEBHOOK_ALLOW": f"http {self._port} 127.0.0.1/32",
            "PENSTOCK_WEBHOOK_SECRET": _SECRET,
        }
        self.sink = stack.enter_context(closing(open_sink(self.address, environ=environ)))

    def bare(self, topic: str, records: Records) -> float:
        with ThreadPoolExecutor(PARTITIONS) as pool:
            begun = perf_counter()
            list(pool.map(self._post, records))
            return perf_counter() - begun

    def _post(self, events: Sequence[Event]) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port)) as connection:
            for event in events:
                headers = {"Content-Type": CONTENT_TYPE}
                connection.request("POST", "/in", to_json(event), headers)
                connection.getresponse().read()


class Penstock(Broker):
    """Another PostgreSQL; the peer has a connection for each partition and batches of 2,000."""

    def __init__(self, folder: str, stack: ExitStack) -> None:
        server = stack.enter_context(EmbeddedPostgres(Path(folder)))
        self._url = server.url("there")
        migrate(self._url)
        parts = urlsplit(self._url)
        place = f"{parts.hostname}:{parts.port}{parts.path}"
        self.address = f"penstock+postgresql://{place}?create=true"
        environ = {
            "PENSTOCK_SINK_USERNAME": unquote(parts.username or ""),
            "PENSTOCK_SINK_PASSWORD": unquote(parts.password or ""),
        }
        self.sink = stack.enter_context(closing(open_sink(self.address, environ=environ)))

    def bare(self, topic: str, records: Records) -> float:
        target = f"bare/{topic}"
        with ExitStack() as stack:
            opened = [stack.enter_context(closing(database.connect(self._url))) for _ in records]
            names.create_topic(opened[0], target, PARTITIONS, create_namespaces=True)
            with ThreadPoolExecutor(PARTITIONS) as pool:
                begun = perf_counter()
                list(pool.map(functools.partial(_publish_all, target), opened, records))
                return perf_counter() - begun


def _message(topic: str, event: Event) -> Message:
    """With as much in its headers as the relay adds."""
    origin = {
        "topic": event.topic,
        "partition": event.partition,
        "sequence": event.sequence,
        "history": event.history,
        "created_at": event.created_at.isoformat(),
        "through": [str(event.event_id)],
    }
    return Message(
        topic,
        event.payload,
        key=event.key,
        type=event.type,
        content_type=event.content_type,
        headers=event.headers | {"penstock-origin": origin},
        partition=event.partition,
    )


def _publish_all(topic: str, connection: Any, events: Sequence[Event]) -> None:
    for start in range(0, len(events), _BATCH):
        publish_batch(
            connection, [_message(topic, each) for each in events[start : start + _BATCH]]
        )


def _nothing(*_: object) -> None:
    """The answers are waited for together."""


BROKERS: tuple[type[Broker], ...] = (Kafka, Pulsar, Redis, Nats, Http, Penstock)
