"""Dagster off for a day: nothing is lost, and it catches up with what it left undone."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING

import pytest

from tests.dagster.conftest import EPOCH_EVENTS, House, failures
from tests.dagster.test_automation import at
from tests.dagster.test_sensors import ARCHIVE
from tests.kit.proof import proves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def publish_yesterday(house: House, count: int) -> None:
    """Events that are a day old, before they are sealed: the seal counts their times."""
    house.publish(count)
    house.connection.execute(
        "UPDATE penstock.events SET created_at = created_at - interval '1 day'"
        " WHERE created_at > now() - interval '12 hours'"
    )


def a_day_passes(house: House) -> None:
    """All that was done is a day older."""
    for table, column in (("chunks", "sequenced_at"), ("log_epochs", "sealed_at")):
        house.connection.execute(
            f"UPDATE penstock.{table} SET {column} = {column} - interval '1 day'"
        )


def relayed(house: House) -> int:
    """How many lines are in the sink."""
    files = [*(house.folder / "relayed").rglob("*.jsonl")]
    return len({line for file in files for line in file.open() if json.loads(line)})


@proves("Dagster alone is enough")
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_day_without_dagster_loses_nothing(house: House, spark: SparkSession) -> None:
    """Some events were sealed and not archived, others only committed, when everything stopped."""
    house.create_topic()
    house.done("policies")
    publish_yesterday(house, 2 * EPOCH_EVENTS)
    for name in ("sequence", "seal"):
        house.done(name)
    publish_yesterday(house, 2 * EPOCH_EVENTS)
    a_day_passes(house)
    house.reload()
    (yesterday,) = house.hours()
    assert yesterday < f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"

    for name in ("backlog", "backlog", "seal", "sealed"):  # the second one finds what to relay
        house.asked(house.sense(name))
    house.sense("sealed")
    assert relayed(house) == 4 * EPOCH_EVENTS
    hours = house.hours()
    assert len(hours) == 2
    house.conditions(at(1))
    assert house.due(ARCHIVE, at(5)) == set(hours)
    for done in house.archive():
        assert done.success, failures(done)
    assert set(house.copies().values()) == {"verified"} and len(house.copies()) == 4
    house.done("clean")
    assert house.low_sequences() == [2 * EPOCH_EVENTS + 1] * 2
    assert house.instance.get_materialized_partitions(ARCHIVE) == set(hours)
    assert house.sense("backlog").run_requests == []
