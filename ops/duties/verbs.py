"""The duties as calls: each makes its units, has them worked off, and returns their outcomes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from ops.duties.engine import AUTO
from ops.duties.running import run
from ops.duties.setup import Setup
from ops.duties.units import DONE, LEFT, MAIN, DutyOutcome, DutyUnit
from ops.duties.work import this_process
from penstock import database, subscriptions
from penstock.archive.copies import key_of
from penstock.records import as_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ops.backfill.running import BackfillRun
    from ops.backfill.workers import Places

#: Log epochs that one unit reads back at most, and events of a subscription for one consumer.
EPOCHS_PER_UNIT = 16
EVENTS_PER_RELAY = 250_000

#: Gives the session when there is work for it.
Spark = Callable[[], "SparkSession"] | None


@dataclass(frozen=True, slots=True)
class DutyPlace:
    """A topic of a database."""

    topic: str
    database: str = MAIN


def sequence(setup: Setup, *, engine: str = AUTO, spark: Spark = None) -> list[DutyOutcome]:
    """Give committed events their sequences, in every database of the setup."""
    units = [DutyUnit("sequence", name) for name in setup.databases]
    return run(units, setup, engine=engine, spark=spark)


def sweep(setup: Setup, *, engine: str = AUTO, spark: Spark = None) -> list[DutyOutcome]:
    """Free what dead programs hold, in every database of the setup."""
    units = [DutyUnit("sweep", name) for name in setup.databases]
    return run(units, setup, engine=engine, spark=spark)


def clean(
    setup: Setup, topics: Iterable[DutyPlace], *, engine: str = AUTO, spark: Spark = None
) -> list[DutyOutcome]:
    """Read back what retention lets go, drop what is whole, then drop tables nobody needs."""
    outcomes = clean_topics(setup, topics, engine=engine, spark=spark)
    cleaned = dict.fromkeys(each.unit.database for each in outcomes if each.unit.duty == "clean")
    slices = run([DutyUnit("storage", name) for name in cleaned], setup, engine=engine, spark=spark)
    return [*outcomes, *slices]


def clean_topics(
    setup: Setup, topics: Iterable[DutyPlace], *, engine: str = AUTO, spark: Spark = None
) -> list[DutyOutcome]:
    """Read back what retention lets go, and drop what is whole.

    Read-back and drop of a topic share one run token, which the database demands.  The outcomes of
    the units "begin clean" are returned only where they failed.
    """
    begun = run(
        [DutyUnit("begin clean", each.database, each.topic) for each in topics],
        setup,
        engine=engine,
        spark=spark,
    )
    open_runs = [each for each in begun if each.state == DONE]
    lots = [unit for each in open_runs for unit in _lots(each)]
    due = sum(epoch.event_count for each in open_runs for epoch in each.result.due)
    read = run(lots, setup, engine=engine, spark=spark, events=due)
    drops = [
        DutyUnit("clean", each.unit.database, each.unit.topic, run=each.result.run)
        for each in open_runs
    ]
    dropped = run(drops, setup, engine=engine, spark=spark)
    return [*(each for each in begun if each.state != DONE), *read, *dropped]


def _lots(begun: DutyOutcome) -> Iterable[DutyUnit]:
    """Units of a few log epochs of one partition each."""
    unit, token = begun.unit, begun.result.run
    in_order = sorted(begun.result.due, key=key_of)
    for partition, due in groupby(in_order, key=lambda each: each.partition):
        epochs = tuple(due)
        for start in range(0, len(epochs), EPOCHS_PER_UNIT):
            lot = epochs[start : start + EPOCHS_PER_UNIT]
            ends = lot[0].log_epoch, lot[-1].log_epoch
            place = unit.database, unit.topic, partition, *ends
            yield DutyUnit("read back", *place, run=token, due=lot)


def relay(
    setup: Setup, relays: Iterable[tuple[str, str]], *, engine: str = AUTO, spark: Spark = None
) -> list[DutyOutcome]:
    """Send subscriptions, as (database, subscription), to their sinks."""
    units, events = relay_units(setup, relays)
    return run(units, setup, engine=engine, spark=spark, events=events)


def relay_units(setup: Setup, relays: Iterable[tuple[str, str]]) -> tuple[list[DutyUnit], int]:
    """The units of relays, and how many events wait.

    A large backlog gets several consumers, which share the partitions as any consumers do.  Those
    that come last may find that the others have done all.
    """
    units: list[DutyUnit] = []
    events = 0
    for name, subscription in relays:
        lags = _lags(setup, DutyUnit("relay", name, subject=subscription))
        events += sum(lags)
        parts = consumers_for(sum(lags), len(lags))
        units += [DutyUnit("relay", name, subject=subscription, first=n + 1) for n in range(parts)]
    return units, events


def consumers_for(events: int, partitions: int) -> int:
    """How many consumers a backlog gets: at least one, and no more than have a partition."""
    return max(1, min(partitions, -(-events // EVENTS_PER_RELAY)))


def _lags(setup: Setup, unit: DutyUnit) -> list[int]:
    """The lags of the partitions that have any."""
    with database.connect(setup.url(unit), application_name="penstock relay") as connection:
        found = subscriptions.lag(connection, unit.subject)
    return [each.lag_events for each in found if each.lag_events]


def backfill_units(
    setup: Setup, database_name: str = MAIN, *, request: int | None = None, run: str = ""
) -> tuple[list[DutyUnit], int]:
    """The units of requests that are due, the most urgent first, and how many events they bring.

    Requests of the kind copy have none: copies are a job of Spark by itself.  With ``request``
    only that one, which has to be there.  ``run`` is the name under which they are worked off.
    """
    from ops.backfill import requests as requests

    place = DutyUnit("backfill", database_name)
    with database.connect(setup.url(place), application_name="penstock backfill") as connection:
        if request is not None:
            requests.request_of(connection, request)
        waiting = requests.list_backfills(
            connection, state="waiting", request=request, max_rows=1_000
        )
    now = dt.datetime.now(dt.UTC)
    due = [each for each in waiting if as_time(each.not_before) <= now]
    chosen = [each for each in due if each.kind != requests.COPY]
    chosen.sort(key=lambda each: (-each.priority, each.request))
    units = [
        DutyUnit("backfill", database_name, each.topic, subject=str(each.request), run=run)
        for each in chosen
    ]
    return units, sum(each.total_events - each.done_events for each in chosen)


def backfill_all(
    setup: Setup,
    places: Places,
    *,
    database_name: str = MAIN,
    request: int | None = None,
    name: str = "",
    engine: str = AUTO,
) -> list[DutyOutcome]:
    """Work off the backfill requests that are due, or one of them.

    Executors take those that they can; what is left is done here: copies, which are jobs of Spark
    by themselves, what a dead runner holds, and what came meanwhile.  ``name`` is the name under
    which the database knows who works on them.
    """
    from ops.backfill.running import run_backfill, run_due
    from ops.backfill.workers import workers

    units, events = backfill_units(setup, database_name, request=request, run=name)
    outcomes = run(units, setup, engine=engine, spark=places.spark, events=events)
    url, tools = setup.url(DutyUnit("backfill", database_name)), workers(places)
    if request is None:
        rest = run_due(url, tools, run=name or None)
    elif outcomes:
        rest = []
    else:
        one = run_backfill(url, tools, run=name or None, request=request)
        rest = [one] if one else []
    return [*outcomes, *(_brought(database_name, each) for each in rest)]


def _brought(database_name: str, done: BackfillRun) -> DutyOutcome:
    """The outcome of a request that was worked off here."""
    unit = DutyUnit("backfill", database_name, subject=str(done.request))
    state = DONE if done.state == "done" else LEFT
    return DutyOutcome(unit, state, done.done_events, 0.0, done.error, done, worker=this_process())
