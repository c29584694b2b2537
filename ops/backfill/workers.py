"""How each kind of backfill request is worked off: copy, rehydrate, relay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ops.backfill.rehydrate import Rehydrator
from ops.backfill.relay_again import RelayAgain
from ops.backfill.requests import COPY, REHYDRATE, RELAY, BackfillUnit
from ops.backfill.running import Job, Workers
from ops.seal import log_epochs
from penstock.archive.copies import key_of
from penstock.archive.log_reader import events_of, read
from penstock.archive.markers import require_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ops.sinks.base import Sink
    from penstock.archive.targets import Target
    from penstock.records import Event


@dataclass(frozen=True, slots=True)
class Places:
    """Where requests read and write.

    ``target`` looks a target up by its name, or raises ConfigurationError. ``targets`` are those
    that copies may be read from, the preferred one first. ``sink`` opens the sink of an address,
    with places of its own under a name. ``spark`` starts a session when it is first needed.
    """

    spark: Callable[[], SparkSession]
    target: Callable[[str], Target]
    targets: Callable[[], list[Target]]
    sink: Callable[[str, str], Sink]


def workers(places: Places) -> Workers:
    """What `ops.backfill.running` works requests off with."""
    return {
        COPY: lambda job: Copier(job, places),
        REHYDRATE: lambda job: Rehydrator(job, places.targets()),
        RELAY: lambda job: _relay(job, places),
    }


class Copier:
    """Makes missing and damaged copies again, one log epoch at a time.

    So a runner that is killed repeats one log epoch at most. A job of Spark for each costs a second
    or two more; `penstock backfill TOPIC --target NAME` copies many at once.
    """

    def __init__(self, job: Job, places: Places) -> None:
        """Find the target and the log epochs of the request; TargetUnavailable, ForeignTarget."""
        from ops.archive.archiving import require_archived
        from ops.archive.copying import CopyJob

        claim = job.claim
        target = places.target(claim.target)
        installation = require_target(job.url, target, write=True)
        require_archived(job.url, claim.topic, target)
        sources = tuple(each for each in places.targets() if each.name != target.name)
        self._job = job
        self._copies = CopyJob(
            places.spark(), job.url, target, installation, repair=True, sources=sources
        )
        self._epochs = {key_of(each): each for each in log_epochs(job.connection, claim.topic)}

    def bring(self, unit: BackfillUnit) -> None:
        """Make the copy of a log epoch, verify it, and record both."""
        from ops.archive.copying import bring_copies

        assert unit.log_epoch is not None
        bring_copies(self._copies, [self._epochs[unit.partition, unit.log_epoch]])
        self._job.done(unit)

    def close(self) -> None:
        """The session belongs to who gave it."""


def _relay(job: Job, places: Places) -> RelayAgain:
    targets = places.targets()

    def batches(unit: BackfillUnit) -> Iterator[pa.RecordBatch]:
        claim = job.claim
        place = (job.url, claim.topic, unit.partition, unit.first_sequence, unit.event_count)
        with read(*place, targets=targets) as reader:
            yield from reader

    def events(unit: BackfillUnit, history: int) -> Iterator[Event]:
        for batch in batches(unit):
            # The database names its present history, a copy that of its time.
            index = batch.schema.get_field_index("history")
            column = pa.repeat(pa.scalar(history, pa.int32()), batch.num_rows)
            yield from events_of(
                job.claim.topic, batch.set_column(index, batch.schema.field(index), column)
            )

    return RelayAgain(job, lambda name: places.sink(job.claim.target, name), events)
