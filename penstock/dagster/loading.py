"""The archive of a topic as the input of an asset: the events of the hours that a run is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg

from penstock import database
from penstock.archive.format import TABLE_SCHEMA
from penstock.dagster.keys import topic_key
from penstock.dagster.reading import EventRange, PenstockResource, SequenceRange
from penstock.database import config
from penstock.errors import ConfigurationError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

_TOPIC = "penstock/topic"
#: The places in a row of `log_epochs_between`.
_PARTITION, _FIRST, _LAST = 0, 2, 3


def archived_topic(
    topic: str, since: str, *, database: str = "", io_manager_key: str = "events"
) -> dg.AssetSpec:
    """The archive of a topic, as an asset that another code location makes, hour by hour.

    ``since`` is the first day, ``2026-11-23``: the one that the control plane shows.  An asset
    with other partitions, days for example, takes it as its input; Dagster maps them by time.
    """
    return dg.AssetSpec(
        topic_key(topic, "archive", database=database),
        partitions_def=dg.HourlyPartitionsDefinition(start_date=f"{since}-00:00", end_offset=1),
        metadata={_TOPIC: topic},
    ).with_io_manager_key(io_manager_key)


class ArchiveLoader(dg.ConfigurableIOManager):
    """Hands an asset the events that were sealed in the hours of its partitions, as Arrow batches.

    They are read from the database, and from the archive where retention has removed them.
    Nothing is held in memory but a batch.  The settings are those of `PenstockResource`.
    """

    url_variable: str = config.URL_VARIABLE
    targets: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it

    def _penstock(self) -> PenstockResource:
        return PenstockResource(url_variable=self.url_variable, targets=self.targets)

    def load_input(self, context: dg.InputContext) -> pa.RecordBatchReader:
        """The events of the hours, in the order of each partition."""
        import pyarrow as pa

        found = self.events(context)
        batches = self._penstock().batches(found)
        return pa.RecordBatchReader.from_batches(TABLE_SCHEMA, batches)

    def events(self, context: dg.InputContext) -> EventRange:
        """Which events they are."""
        upstream = context.upstream_output
        topic = (upstream.definition_metadata or {}).get(_TOPIC) if upstream else None
        if not isinstance(topic, str):
            raise ConfigurationError(
                f"{context.asset_key.to_user_string()} is not the archive of a topic",
                hint="declare it with penstock.dagster.archived_topic",
            )
        hours = context.asset_partitions_time_window
        with self._penstock().connect() as connection:
            rows = database.call(
                connection,
                "log_epochs_between",
                topic=topic,
                from_time=hours.start,
                to_time=hours.end,
            )
        return EventRange(
            topic=topic,
            ranges=[
                SequenceRange(partition=row[_PARTITION], first=row[_FIRST], last=row[_LAST])
                for row in rows
            ],
        )

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Refused: events are published, and Penstock's own control plane archives them."""
        raise UsageError(
            "the archive of a topic cannot be written by an asset",
            hint="publish events; give your asset an IO manager of its own",
        )
