"""A Dagster project that builds on a topic of Penstock.

`new_orders` is made when orders have arrived, from exactly those orders.  `revenue_of_day` is made
once a day, from the hours of the archive in that day.
"""

import json
import os
from pathlib import Path

import dagster as dg
import pyarrow as pa

from penstock.dagster import (
    ArchiveLoader,
    EventRange,
    PenstockResource,
    archived_topic,
    on_events,
    topic_key,
)

TOPIC = "shop/orders"
#: The first day of the archive, as the control plane shows it.
SINCE = os.environ.get("ORDERS_SINCE", "2026-01-01")
FOLDER = Path(os.environ.get("ORDERS_FOLDER", "orders"))

#: Another code location makes it: Penstock's own.
archive = archived_topic(TOPIC, since=SINCE)


@dg.asset(deps=[topic_key(TOPIC, "sequenced")])
def new_orders(config: EventRange, penstock: PenstockResource) -> dg.MaterializeResult[None]:
    """A file for each range of orders, with the name of the range: a second run changes nothing."""
    orders = [json.loads(event.payload) for event in penstock.events(config)]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{config.name}.json").write_text(json.dumps(orders))
    return dg.MaterializeResult(metadata={"orders": len(orders)})


@dg.asset(
    partitions_def=dg.DailyPartitionsDefinition(start_date=SINCE),
    ins={"orders": dg.AssetIn(archive.key, partition_mapping=dg.TimeWindowPartitionMapping())},
)
def revenue_of_day(orders: pa.RecordBatchReader) -> dg.MaterializeResult[None]:
    """What was sold in the orders that were sealed on a day."""
    revenue = sum(
        json.loads(payload)["amount"]
        for batch in orders
        for payload in batch.column("payload").to_pylist()
    )
    return dg.MaterializeResult(metadata={"revenue": revenue})


#: Where the archive lies: it is read for what retention has removed from the database.
TARGETS = {"local": os.environ["ORDERS_ARCHIVE"]} if "ORDERS_ARCHIVE" in os.environ else {}

defs = dg.Definitions(
    assets=[archive, new_orders, revenue_of_day],
    sensors=[on_events(new_orders, TOPIC, max_events=1_000)],
    resources={
        "penstock": PenstockResource(targets=TARGETS),
        "events": ArchiveLoader(targets=TARGETS),
    },
)
