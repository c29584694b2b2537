"""What the tests of erasures share: a log with a secret in it, and where that may be found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ops.archive import manifest
from ops.erase import What
from ops.seal import log_epochs
from penstock.archive.checksum import EpochChecksum
from penstock.archive.copies import key_of
from penstock.archive.copy_reader import read_copy
from penstock.archive.targets import Target
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from tests.archive.logs import Log
from tests.kit.log import drain, topic

TOPIC = "bank/people"
SECRET = b"secret"
WHO = "anna@example.org"
BY_KEY = What(TOPIC, key=WHO)
WHY = "art. 17, case 4"


def secret_log(own: Any, url: str) -> Log:
    """Three events of the key among ten of each of two partitions."""
    topic(own, 2, TOPIC)
    publish_secrets(own)
    return Log(own, url, TOPIC)


def publish_secrets(own: Any) -> None:
    """Ten events for each partition: the places 2, 6 and 10 have the key."""
    messages = [
        Message(
            TOPIC,
            b"%s %d" % (SECRET if n % 4 == 1 else b"plain", n),
            key=WHO if n % 4 == 1 else f"k{n}",
            type="t",
            headers={"n": n},
            partition=partition,
        )
        for partition in range(2)
        for n in range(10)
    ]
    publish_batch(own, messages)
    drain(own)


def left_in(*targets: Target) -> int:
    """The rows with the secret in all files of targets, named by a commit or not."""
    payloads: list[Any] = [
        payload
        for target in targets
        for path in Path(target.uri).rglob("*.parquet")
        for payload in pq.read_table(path, columns=["payload"])["payload"].to_pylist()
    ]
    return sum(SECRET in payload for payload in payloads)


def archived(log: Log, target: Target) -> list[Any]:
    """The rows of every recorded copy on a target, in the shape of the log's rows.

    Each copy has the checksum of its log epoch.
    """
    found: list[Any] = []
    epochs = log_epochs(log.connection, TOPIC)
    copies = manifest.recorded(log.connection, target.name, epochs)
    assert copies.keys() == {key_of(each) for each in epochs}
    for key in sorted(copies):
        copy, seen = copies[key], EpochChecksum()
        for batch in read_copy(target, copy, copy.first_sequence, copy.last_sequence):
            seen.add(batch)
            columns = (batch.column(name).to_pylist() for name in batch.schema.names[2:])
            found += [(copy.partition, *row) for row in zip(*columns, strict=True)]
        assert (seen.event_count, seen.hexdigest()) == (copy.event_count, copy.checksum)
    return found
