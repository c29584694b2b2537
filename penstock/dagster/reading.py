"""Which events a run is about, and how it reads them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg

from penstock import archive, database
from penstock.archive.targets import Target
from penstock.database import config
from penstock.errors import ConfigurationError
from penstock.records import Event

if TYPE_CHECKING:
    import pyarrow as pa

#: The name of a range has so many characters at most: files have 255 bytes with what follows it.
LONGEST_NAME = 100
#: So many hexadecimal digits of a SHA-256 tell ranges of many partitions apart.
_DIGITS = 32


class SequenceRange(dg.Config):
    """The sequences ``first`` to ``last`` of a partition; both belong to it."""

    partition: int
    first: int
    last: int


class EventRange(dg.Config):
    """The events of a run, as the configuration of its asset.

    They are named by their place in the log, which never changes.  So a run that is repeated reads
    the very same events.
    """

    topic: str
    ranges: list[SequenceRange]

    @property
    def count(self) -> int:
        """How many events it names."""
        return sum(each.last - each.first + 1 for each in self.ranges)

    @property
    def name(self) -> str:
        """A short text that no other range of the topic has: for files, rows and tags.

        It names each partition with its sequences.  Where that would be long it names the first
        partitions, and the digest of the whole name follows.
        """
        parts = sorted((each.partition, each.first, each.last) for each in self.ranges)
        whole = "_".join(f"{partition}.{first}-{last}" for partition, first, last in parts)
        if len(whole) <= LONGEST_NAME:
            return whole
        digest = hashlib.sha256(whole.encode()).hexdigest()[:_DIGITS]
        front, _, _ = whole[: LONGEST_NAME - _DIGITS].rpartition("_")
        return f"{front}_{digest}"


class PenstockResource(dg.ConfigurableResource[None]):
    """A database with Penstock, and the places of its archive.

    ``url_variable`` names the environment variable with the address: Dagster shows configuration,
    so the address is never part of it.  ``targets`` are directories or ``s3://`` places by the
    names that the database has recorded.  They are asked for what retention has removed.
    """

    url_variable: str = config.URL_VARIABLE
    targets: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it

    def url(self) -> str:
        """The address, with the password: for connections, never for logs or metadata."""
        found = os.environ.get(self.url_variable, "").strip()
        if not found:
            raise ConfigurationError(
                f"{self.url_variable} is not set",
                hint="set it to the address of the database where the code location runs",
            )
        config.dialect_of_url(found)
        return found

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """A connection of the driver in autocommit, closed at the end."""
        with closing(database.connect(self.url(), application_name="penstock dagster")) as opened:
            yield opened

    def batches(self, events: EventRange) -> Iterator[pa.RecordBatch]:
        """The events as Arrow batches, a partition after the other, each in its order."""
        for each in events.ranges:
            with archive.read(
                self.url(),
                events.topic,
                each.partition,
                each.first,
                each.last - each.first + 1,
                targets=[Target(name, uri) for name, uri in self.targets.items()],
            ) as reader:
                yield from reader

    def events(self, events: EventRange) -> Iterator[Event]:
        """The same as events, one by one."""
        for batch in self.batches(events):
            yield from archive.events_of(events.topic, batch)
