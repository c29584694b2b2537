"""The bank's events go through a broker, and the relay is killed again and again.

`python -m tools.demo_broker kafka` (or `pulsar`).  While the bank publishes, relay processes are
killed by SIGKILL, and one is paused for longer than its lease while another one works.  At the end
a reader adds up what is in the broker: every account must have the balance that it has in the
bank's own table, and no event may be missing or there twice.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import log, subscriptions
from penstock.errors import PenstockError
from penstock.subscriptions import stream
from tools.demo import faults, figures
from tools.demo.stage import LEASE_SECONDS, PARTITIONS, TOPIC, DemoFailed, Stage
from tools.pulsar.errors import PulsarUnavailable

if TYPE_CHECKING:
    import psycopg

ROOT = Path(__file__).resolve().parents[1]
RELAY = "to-the-broker"
PREFIX = "demo"
_ROLLED_BACK = 0.1
_READ_SECONDS = 60.0


#: The payload and the attributes of an event as the broker has it.
Record = tuple[bytes, Mapping[str, str]]


class DemoBroker(ABC):
    """A broker that lives as long as the demo."""

    title: str
    #: As a relay is given it; missing places are made.
    address: str

    @abstractmethod
    def start(self) -> None:
        """Start it."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it."""

    @abstractmethod
    def records(self, partition: int) -> Iterator[Record]:
        """What a careful reader gets of a partition."""


class InKafka(DemoBroker):
    """One node of Apache Kafka."""

    title = "Kafka"

    def __init__(self, folder: Path) -> None:
        from tools.servers import KafkaServer

        self._server = KafkaServer(folder)

    def start(self) -> None:
        """Start it, on a port that the kernel gives."""
        self._server.start()
        self.address = f"kafka://{self._server.url()}/{PREFIX}?create=true"

    def stop(self) -> None:
        """Stop it."""
        self._server.stop()

    def records(self, partition: int) -> Iterator[Record]:
        """The committed records."""
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        from ops.sinks.kafka_settings import KafkaSettings

        reader = Consumer(
            {
                "bootstrap.servers": self._server.url(),
                "group.id": "demo",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        name = KafkaSettings(self._server.url(), PREFIX).topic(TOPIC)
        reader.assign([TopicPartition(name, partition, 0)])
        deadline = time.monotonic() + _READ_SECONDS
        try:
            while time.monotonic() < deadline:
                message: Any = reader.poll(1)
                if message is None:
                    continue
                if message.error() is None:
                    yield message.value(), {key: text.decode() for key, text in message.headers()}
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return
        finally:
            reader.close()
        raise DemoFailed(f"Kafka's partition {partition} could not be read back")


class InPulsar(DemoBroker):
    """A standalone of Apache Pulsar."""

    title = "Pulsar"

    def __init__(self, folder: Path) -> None:
        from tools.pulsar import PulsarStandalone

        self._server = PulsarStandalone(folder, die_with_parent=True)

    def start(self) -> None:
        """Start it, on ports that the kernel gives."""
        server = self._server.start()
        self.address = f"{server.service_url}/public/default?admin={server.admin_url}&create=true"

    def stop(self) -> None:
        """Stop it."""
        self._server.stop()

    def records(self, partition: int) -> Iterator[Record]:
        """The messages."""
        import pulsar

        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        client = pulsar.Client(self._server.service_url, logger=quiet)
        name = f"persistent://public/default/{TOPIC.replace('/', '.')}-partition-{partition}"
        try:
            reader = client.create_reader(name, pulsar.MessageId.earliest)
            while reader.has_message_available():
                message = reader.read_next(int(_READ_SECONDS * 1000))
                yield message.data(), message.properties()
        finally:
            client.close()


BROKERS: dict[str, type[InKafka] | type[InPulsar]] = {"kafka": InKafka, "pulsar": InPulsar}


@dataclass(frozen=True, slots=True)
class Found:
    """What a reader finds in the broker."""

    balances: figures.Balances
    events: int
    distinct: int


def play(stage: Stage, broker: DemoBroker, options: argparse.Namespace) -> str:
    """All of it. Returns what is wrong, or ''."""
    stage.prepare()
    with stage.connect() as connection:
        stream.subscribe(connection, RELAY, [TOPIC])
        stream.configure_subscription(
            connection,
            RELAY,
            heartbeat_seconds=LEASE_SECONDS / 4,
            lease_seconds=LEASE_SECONDS,
            release_seconds=LEASE_SECONDS,
        )
        stage.start_sequencer()
        stage.start_relay("relay-1", RELAY, broker.address)
        traffic = stage.start_traffic(options.transactions, options.rate)
        _disturb(stage, connection, broker, options)
        stage.wait_until(lambda: traffic.poll() is not None, "the bank did not close", 300)
        stage.wait_until(lambda: _lag(connection) == 0, "the relay did not catch up", 120)
        stage.stop_daemons()
        return _compared(connection, read_back(broker), broker.title)


def _disturb(
    stage: Stage,
    connection: psycopg.Connection[Any],
    broker: DemoBroker,
    options: argparse.Namespace,
) -> None:
    """Kill the relay at random, and leave one paused past its lease."""
    chance = random.Random(options.seed)
    wanted = options.transactions * 2 * (1 - _ROLLED_BACK)
    deeds = ["kill"] * options.kills + ["pause"]
    chance.shuffle(deeds)
    paused: list[str] = []
    for number, deed in enumerate(deeds, start=1):
        share = number / (len(deeds) + 1) * wanted

        def reached(share: float = share) -> bool:
            return _relayed(connection) >= share

        stage.wait_until(reached, f"the relay did not come to {share:,.0f} events", 120)
        time.sleep(chance.uniform(0, 0.3))
        name = f"relay-{number}"
        print(f"{_relayed(connection):,} events are in {broker.title}: {deed} {name}", flush=True)
        if deed == "kill":
            stage.kill(name)
        else:
            stage.signal(name, signal.SIGSTOP)
            paused.append(name)
        stage.start_relay(f"relay-{number + 1}", RELAY, broker.address)
    for name in paused:
        stage.signal(name, signal.SIGCONT)
        print(f"{name} is awake again", flush=True)


def _relayed(connection: psycopg.Connection[Any]) -> int:
    return sum(stream.position(connection, RELAY, TOPIC).values())


def _lag(connection: psycopg.Connection[Any]) -> int:
    waiting = log.status(connection).unsequenced_events
    return waiting + sum(each.lag_events for each in subscriptions.lag(connection, RELAY))


def read_back(broker: DemoBroker) -> Found:
    """Everything that the broker has of the topic."""
    sums: Counter[int] = Counter()
    ids: list[str] = []
    for partition in range(PARTITIONS):
        for value, attributes in broker.records(partition):
            told = json.loads(value)
            sums[told["account"]] += told["delta"]
            ids.append(attributes["ce_id"])
    balances = {account: balance for account, balance in sums.items() if balance}
    return Found(balances, len(ids), len(set(ids)))


def _compared(connection: psycopg.Connection[Any], found: Found, title: str) -> str:
    """'' when the broker has every event once and every balance, and else what is wrong."""
    published, bank = faults.published(connection), figures.bank(connection)
    wrong = sorted(
        account
        for account in bank.keys() | found.balances.keys()
        if bank.get(account, 0) != found.balances.get(account, 0)
    )
    print(
        f"published {published:,}, in {title} {found.events:,}, "
        f"{found.distinct:,} of them distinct; {len(bank):,} accounts compared"
    )
    if (published, published) != (found.events, found.distinct):
        return "the numbers of events differ"
    return f"{len(wrong)} accounts differ: {wrong[:5]}" if wrong else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo_broker", description=__doc__)
    parser.add_argument("broker", choices=BROKERS)
    parser.add_argument("--transactions", type=int, default=12_400)
    parser.add_argument("--rate", type=int, default=450, help="transactions a second")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="where everything lies")
    options = parser.parse_args(arguments)
    default = ROOT / ".penstock" / f"demo-{options.broker}"
    directory = (options.directory or default).absolute()
    folder = directory / options.broker
    shutil.rmtree(folder, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    broker = BROKERS[options.broker](folder)
    try:
        broker.start()
        with Stage(directory) as stage:
            wrong = play(stage, broker, options)
    except (DemoFailed, PenstockError, PulsarUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        broker.stop()
    seconds = time.monotonic() - begun
    print(f"the balances: {wrong or f'all equal to those in {broker.title}'} ({seconds:.0f} s)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
