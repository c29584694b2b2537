"""What declarative automation asks for, evaluated at times that the test gives."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import dagster as dg

from tests.dagster.conftest import House
from tests.dagster.test_load import SLUG
from tests.dagster.test_sensors import ARCHIVE, SEALED, sealed
from tests.kit.proof import proves

ROLLUP = dg.AssetKey([*SLUG.split("/"), "orders_rollup"])


def at(minute: int, second: int = 1) -> dt.datetime:
    """A time in the next hours, so that nothing of the test is later."""
    now = dt.datetime.now(dt.UTC).replace(minute=0, second=0, microsecond=0)
    return now + dt.timedelta(hours=1, minutes=minute, seconds=second)


def test_automation_archives_what_is_sealed_and_only_that(house: House) -> None:
    """Every five minutes; an hour in which nothing was sealed is missing too, and not asked for."""
    sealed(house)
    (hour,) = house.hours()
    house.conditions(at(1))
    assert house.due(ARCHIVE, at(2)) == set()
    assert house.due(ARCHIVE, at(5)) == {hour}
    report(house, ARCHIVE, hour)
    assert house.due(ARCHIVE, at(10)) == set()
    report(house, SEALED, hour)  # more was sealed in the same hour
    assert house.due(ARCHIVE, at(12)) == set()
    assert house.due(ARCHIVE, at(15)) == {hour}


@proves("every sealed hour is told")
def test_an_hour_that_dagster_forgets_is_archived_again(house: House) -> None:
    """Dagster 1.13 can lose one of the hours that were made while it counted them.

    It reads which event made something last, then which run was planned last, and takes the higher
    number for all that it has seen. What was made between the two is passed over for good. The page
    shows that hour as missing until automation has made it again, which finds all copies there.
    """
    sealed(house)
    (hour,) = house.hours()
    house.conditions(at(1))
    house.archive()
    assert house.due(ARCHIVE, at(5)) == set()
    before = house.copies()
    counted = forget_hours(house)
    assert counted() == set()
    assert house.due(ARCHIVE, at(10)) == {hour}
    house.archive()
    assert counted() == {hour}
    assert house.due(ARCHIVE, at(15)) == set()
    assert house.copies() == before


def forget_hours(house: House) -> Callable[[], set[str]]:
    """Dagster's count without any hour.  Returns what gives the hours that it counts from then."""
    # Not exported by `dagster`.
    from dagster._core.storage import partition_status_cache

    partitions: Any = house.defs.resolve_asset_graph().get(ARCHIVE).partitions_def

    def count() -> Any:
        return partition_status_cache.get_and_update_asset_status_cache_value(
            house.instance, ARCHIVE, partitions
        )

    empty = partitions.empty_subset().serialize()
    lost = count()._replace(serialized_materialized_partition_subset=empty)
    house.instance.update_asset_cached_status_data(ARCHIVE, lost)
    return lambda: set(
        count().deserialize_materialized_partition_subsets(partitions).get_partition_keys()
    )


def test_a_run_of_the_automation_makes_all_checks(house: House) -> None:
    """Guard: the condition of `copies_verified`; without it Dagster takes that check only."""
    sealed(house)
    (hour,) = house.hours()
    house.conditions(at(1))
    (asked,) = house.runs_asked_for(at(5))
    assert (asked.asset_selection, asked.partition_key) == ([ARCHIVE], hour)
    assert {each.name for each in asked.asset_check_keys or ()} == {
        "copies_verified",
        "readable",
        "schema_drift",
    }


def report(house: House, key: dg.AssetKey, partition: str) -> None:
    """A materialization without a run."""
    house.instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=partition))


def test_automation_rolls_up_a_day_when_it_is_closed(house: House) -> None:
    sealed(house)
    (hour,) = house.hours()
    report(house, ARCHIVE, hour)
    day = hour[:10]
    next_day = dt.datetime.fromisoformat(f"{day}T00:00:00+00:00") + dt.timedelta(days=1)
    house.conditions(next_day - dt.timedelta(minutes=20))
    assert house.due(ROLLUP, next_day - dt.timedelta(minutes=10)) == set()
    house.conditions(next_day + dt.timedelta(minutes=10))
    assert house.due(ROLLUP, next_day + dt.timedelta(minutes=14)) == {day}
    report(house, ROLLUP, day)
    assert house.due(ROLLUP, next_day + dt.timedelta(minutes=44)) == set()
