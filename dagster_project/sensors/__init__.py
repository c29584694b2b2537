"""The sensors: each looks at a fact of the database, and asks for a run or reports it.

They are level-triggered: what they look at is what is there now, and a cursor holds only how far a
look has come, or how long to wait before asking again.  One topic that fails stops no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dagster as dg

from dagster_project.catalogue import Catalogue
from dagster_project.sensors import backfills, backlog, hours, lost, sealing

#: The jobs for which sensors ask.
JOBS = ("sequence", "relay", "seal", "backfill")


def build(catalogue: Catalogue, jobs: Iterable[Any]) -> list[dg.SensorDefinition]:
    """The sensors that have something to do."""
    made = {job.name: job for job in jobs}
    by_name = {name: made.get(catalogue.named(name)) for name in JOBS}
    found = [
        backlog.build(catalogue, by_name["sequence"], by_name["relay"]),
        sealing.build(catalogue, by_name["seal"]),
        backfills.build(catalogue, by_name["backfill"]),
    ]
    if catalogue.topics:
        found.append(hours.build(catalogue))
    if catalogue.archived():
        found += [lost.build(catalogue), automation(catalogue)]
    return found


def automation(catalogue: Catalogue) -> dg.SensorDefinition:
    """Evaluates the conditions of the archive and of the rollup.

    A look at 200 of them costs Dagster seconds of a processor.  Their times come every five
    minutes, so each look finds one that has come, and one more look would find nothing.
    """
    keys = [
        catalogue.key(policy.topic, name)
        for policy in catalogue.archived()
        for name in ("archive", "rollup")
    ]
    return dg.AutomationConditionSensorDefinition(
        catalogue.named("automation"),
        target=dg.AssetSelection.assets(*keys),
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=300,
        description="Asks for the archive of hours that were sealed and not archived, and for the "
        "rollup of closed days: see the automation condition of each asset.",
    )
