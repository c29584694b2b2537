"""The bank's events go through Kafka, and the relay is killed again and again.

`python -m tools.demo_kafka`.  While the bank publishes, relay processes are killed by SIGKILL, and
one is paused for longer than its lease while another one works.  At the end a reader of committed
records adds up what is in Kafka: every account must have the balance that it has in the bank's own
table, and no event may be missing or there twice.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from ops.sinks.kafka_settings import KafkaSettings
from penstock import log, subscriptions
from penstock.errors import PenstockError
from penstock.subscriptions import stream
from tools.demo import faults, figures
from tools.demo.stage import LEASE_SECONDS, PARTITIONS, TOPIC, DemoFailed, Stage
from tools.servers import KafkaServer

if TYPE_CHECKING:
    import psycopg

ROOT = Path(__file__).resolve().parents[1]
RELAY = "to-kafka"
PREFIX = "demo"
_ROLLED_BACK = 0.1
_READ_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a reader of committed records finds in Kafka."""

    balances: figures.Balances
    events: int
    distinct: int


def play(stage: Stage, kafka: KafkaServer, options: argparse.Namespace) -> str:
    """All of it. Returns what is wrong, or ''."""
    stage.prepare()
    address = f"kafka://{kafka.url()}/{PREFIX}?create=true"
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
        stage.start_relay("relay-1", RELAY, address)
        traffic = stage.start_traffic(options.transactions, options.rate)
        _disturb(stage, connection, address, options)
        stage.wait_until(lambda: traffic.poll() is not None, "the bank did not close", 300)
        stage.wait_until(lambda: _lag(connection) == 0, "the relay did not catch up", 120)
        stage.stop_daemons()
        found = read_back(kafka)
        return _compared(connection, found)


def _disturb(
    stage: Stage, connection: psycopg.Connection[Any], address: str, options: argparse.Namespace
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
        print(f"{_relayed(connection):,} events are in Kafka: {deed} {name}", flush=True)
        if deed == "kill":
            stage.kill(name)
        else:
            stage.signal(name, signal.SIGSTOP)
            paused.append(name)
        stage.start_relay(f"relay-{number + 1}", RELAY, address)
    for name in paused:
        stage.signal(name, signal.SIGCONT)
        print(f"{name} is awake again", flush=True)


def _relayed(connection: psycopg.Connection[Any]) -> int:
    return sum(stream.position(connection, RELAY, TOPIC).values())


def _lag(connection: psycopg.Connection[Any]) -> int:
    waiting = log.status(connection).unsequenced_events
    return waiting + sum(each.lag_events for each in subscriptions.lag(connection, RELAY))


def read_back(kafka: KafkaServer) -> Found:
    """Every committed record of the topic."""
    settings = KafkaSettings(kafka.url(), PREFIX)
    name = settings.topic(TOPIC)
    sums: Counter[int] = Counter()
    ids: list[str] = []
    for partition in range(PARTITIONS):
        for value, headers in _records(kafka, name, partition):
            told = json.loads(value)
            sums[told["account"]] += told["delta"]
            ids.append(headers["ce_id"])
    balances = {account: balance for account, balance in sums.items() if balance}
    return Found(balances, len(ids), len(set(ids)))


def _records(kafka: KafkaServer, name: str, partition: int) -> list[tuple[bytes, dict[str, str]]]:
    reader = Consumer(
        {
            "bootstrap.servers": kafka.url(),
            "group.id": "demo",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    reader.assign([TopicPartition(name, partition, 0)])
    found: list[tuple[bytes, dict[str, str]]] = []
    deadline = time.monotonic() + _READ_SECONDS
    try:
        while time.monotonic() < deadline:
            message: Any = reader.poll(1)
            if message is None:
                continue
            if message.error() is None:
                headers = {key: text.decode() for key, text in message.headers()}
                found.append((message.value(), headers))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return found
    finally:
        reader.close()
    raise DemoFailed(f"Kafka's partition {partition} could not be read back")


def _compared(connection: psycopg.Connection[Any], found: Found) -> str:
    """'' when Kafka has every event once and every balance, and else what is wrong."""
    published, bank = faults.published(connection), figures.bank(connection)
    wrong = sorted(
        account
        for account in bank.keys() | found.balances.keys()
        if bank.get(account, 0) != found.balances.get(account, 0)
    )
    print(
        f"published {published:,}, in Kafka {found.events:,} of which {found.distinct:,} differ; "
        f"{len(bank):,} accounts compared"
    )
    if (published, published) != (found.events, found.distinct):
        return "the numbers of events differ"
    return f"{len(wrong)} accounts differ: {wrong[:5]}" if wrong else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo_kafka", description=__doc__)
    parser.add_argument("--transactions", type=int, default=12_400)
    parser.add_argument("--rate", type=int, default=450, help="transactions a second")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=ROOT / ".penstock" / "demo-kafka")
    options = parser.parse_args(arguments)
    directory = options.directory.absolute()
    shutil.rmtree(directory / "kafka", ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    try:
        with KafkaServer(directory / "kafka") as kafka, Stage(directory) as stage:
            wrong = play(stage, kafka, options)
    except (DemoFailed, PenstockError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - begun
    print(f"the balances: {wrong or 'all equal to those in Kafka'} ({seconds:.0f} s)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
