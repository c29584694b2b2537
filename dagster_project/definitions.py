"""Everything that Dagster runs: `workspace.yaml` loads this module.

Where what is:

- `catalogue.py`: for which databases and topics there are assets; read once, handed on to runs.
- `assets/`: the asset graph; `checks.py`: the kinds of checks.
- `jobs.py`, `schedules.py`, `sensors/`: what runs, when, and why.
- `naming.py`, `common.py`, `triggers.py`: what they share.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_project import checks, jobs, schedules, sensors
from dagster_project.assets import canary, epochs, house, logs, relays, retention, rollups
from dagster_project.catalogue import Catalogue, Fleet, loaded
from dagster_project.common import beta_allowed, uncollected
from dagster_project.naming import house_key
from dagster_project.sensors import failures
from ops.policies import file as policy_file
from penstock.dagster.keys import HOUSE
from resources.database import HOW_TO_CONFIGURE, DatabaseResource, is_configured
from resources.sinks import SinkResource
from resources.spark import SparkResource
from resources.targets import ArchiveTargetResource

# Dagster copies its own sensors with a parameter that it calls beta; nobody here gives owners.
warnings.filterwarnings("ignore", message="Parameter `owners` of init", category=dg.BetaWarning)


@dg.definitions
def defs() -> dg.Definitions:
    """Of the databases that environment and policy file name; or how to name one."""
    if not (is_configured() or has_fleet()):
        return not_configured()
    fleet, text = loaded()
    with beta_allowed(), uncollected():
        return build(fleet).with_reconstruction_metadata({HOUSE: text})


def build(fleet: Fleet) -> dg.Definitions:
    """The definitions for these databases, their topics and their policies."""
    parts = [part(each) for each in fleet]
    return dg.Definitions(
        assets=[each for found in parts for each in found.assets],
        asset_checks=[each for found in parts for each in found.checks],
        jobs=[each for found in parts for each in found.jobs],
        schedules=[each for found in parts for each in found.schedules],
        sensors=[*(each for found in parts for each in found.sensors), failures.build()],
        resources={
            "database": DatabaseResource(),
            "spark": SparkResource(),
            "sinks": SinkResource(),
            "targets": ArchiveTargetResource(),
        },
        # One process for a whole run: a start of Spark is used by all its steps.
        executor=dg.in_process_executor,
    )


@dataclass(frozen=True)
class Part:
    """What is there for one database."""

    assets: list[Any]
    checks: list[Any]
    jobs: list[Any]
    schedules: list[Any]
    sensors: list[Any]


def part(catalogue: Catalogue) -> Part:
    """The definitions for one database: none of them touches another one."""
    found = [
        *logs.build(catalogue),
        *epochs.build(catalogue),
        *rollups.build(catalogue),
        *retention.build(catalogue),
        *relays.build(catalogue),
        *house.build(catalogue),
        *canary.build(catalogue),
    ]
    made = jobs.build(catalogue)
    own = [each for each in found if isinstance(each, dg.AssetChecksDefinition)]
    return Part(
        assets=[each for each in found if each not in own],
        checks=[*checks.build(catalogue), *own],
        jobs=made,
        schedules=schedules.build(catalogue, made),
        sensors=sensors.build(catalogue, made),
    )


def has_fleet() -> bool:
    """Whether the policy file names databases."""
    return policy_file.default_path().exists() and bool(policy_file.load().databases)


def not_configured() -> dg.Definitions:
    """One asset that says what to set; nothing is started."""
    return dg.Definitions(
        assets=[
            dg.AssetSpec(
                house_key("not_configured"),
                group_name=HOUSE,
                description=f"**No database is configured**, so there is nothing to show: "
                f"{HOW_TO_CONFIGURE}. Then start Dagster again.",
            )
        ]
    )
