"""Penstock in a Dagster project of your own: assets that are made when events arrive.

    import dagster as dg
    from penstock.dagster import EventRange, PenstockResource, on_events, topic_key

    @dg.asset(deps=[topic_key("shop/orders", "sequenced")])
    def orders(config: EventRange, penstock: PenstockResource) -> None:
        for event in penstock.events(config):
            ...

    defs = dg.Definitions(
        assets=[orders],
        sensors=[on_events(orders, "shop/orders")],
        resources={"penstock": PenstockResource()},
    )

It needs the extra ``dagster``, and a driver for the database.  `docs/reference/dagster-projects.md`
tells more.
"""

from __future__ import annotations

from penstock.errors import MissingExtra

try:
    import dagster as _dagster  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtra.of(str(error.name), "penstock[dagster]") from None

from penstock.dagster.keys import topic_key as topic_key
from penstock.dagster.loading import (
    ArchiveLoader as ArchiveLoader,
    archived_topic as archived_topic,
)
from penstock.dagster.reading import (
    EventRange as EventRange,
    PenstockResource as PenstockResource,
    SequenceRange as SequenceRange,
)
from penstock.dagster.sensing import on_events as on_events
