"""Everything that Dagster runs: `workspace.yaml` loads this module."""

from __future__ import annotations

import warnings

import dagster as dg

from dagster_project import (
    catalogue,
    duties,
    relays,
    schedules,
    sensors,
    sequencing,
    topics,
    upkeep,
)
from resources.database import DatabaseResource
from resources.sinks import SinkResource
from resources.spark import SparkResource
from resources.targets import ArchiveTargetResource

# Dagster copies its own sensors with a parameter that it calls beta; nobody here gives owners.
warnings.filterwarnings("ignore", message="Parameter `owners` of init", category=dg.BetaWarning)


def build() -> dg.Definitions:
    """The definitions for what the database, the policy file and the environment name now."""
    found = catalogue.read()
    jobs = duties.build(found)
    return dg.Definitions.merge(
        sequencing.build(found),
        topics.build(found),
        relays.build(found),
        upkeep.build(found),
        dg.Definitions(jobs=jobs.all()),
        schedules.build(found, jobs),
        sensors.build(found, jobs),
        shared(),
    )


def shared() -> dg.Definitions:
    """The resources, and one process for a whole run: a start of Spark is used by all its steps."""
    return dg.Definitions(
        resources={
            "database": DatabaseResource(),
            "spark": SparkResource(),
            "sinks": SinkResource(),
            "targets": ArchiveTargetResource(),
        },
        executor=dg.in_process_executor,
    )


defs = build()
