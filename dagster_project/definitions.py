"""Everything that Dagster runs: `workspace.yaml` loads this module.

Where what is:

- `catalogue.py`: for which topics there are assets; read once, and handed on to runs.
- `assets/`: the asset graph; `checks.py`: the kinds of checks.
- `jobs.py`, `schedules.py`, `sensors/`: what runs, when, and why.
- `naming.py`, `common.py`, `triggers.py`: what they share.
"""

from __future__ import annotations

import warnings

import dagster as dg

from dagster_project import checks, jobs, schedules, sensors
from dagster_project.assets import canary, epochs, house, logs, relays, retention, rollups
from dagster_project.catalogue import Catalogue, loaded
from dagster_project.common import beta_allowed
from dagster_project.naming import HOUSE, house_key
from resources.database import HOW_TO_CONFIGURE, DatabaseResource, is_configured
from resources.sinks import SinkResource
from resources.spark import SparkResource
from resources.targets import ArchiveTargetResource

# Dagster copies its own sensors with a parameter that it calls beta; nobody here gives owners.
warnings.filterwarnings("ignore", message="Parameter `owners` of init", category=dg.BetaWarning)


@dg.definitions
def defs() -> dg.Definitions:
    """What the environment names: a database's definitions, or how to name one."""
    if not is_configured():
        return not_configured()
    catalogue, text = loaded()
    with beta_allowed():
        return build(catalogue).with_reconstruction_metadata({HOUSE: text})


def build(catalogue: Catalogue) -> dg.Definitions:
    """The definitions for these topics and policies."""
    found = [
        *logs.build(catalogue),
        *epochs.build(catalogue),
        *rollups.build(catalogue),
        *retention.build(catalogue),
        *relays.build(catalogue),
        *house.build(),
        *canary.build(catalogue),
    ]
    assets = [each for each in found if not isinstance(each, dg.AssetChecksDefinition)]
    made = jobs.build(catalogue)
    return dg.Definitions(
        assets=assets,
        asset_checks=[
            *checks.build(catalogue),
            *(each for each in found if isinstance(each, dg.AssetChecksDefinition)),
        ],
        jobs=made,
        schedules=schedules.build(made),
        sensors=sensors.build(catalogue, made),
        resources={
            "database": DatabaseResource(),
            "spark": SparkResource(),
            "sinks": SinkResource(),
            "targets": ArchiveTargetResource(),
        },
        # One process for a whole run: a start of Spark is used by all its steps.
        executor=dg.in_process_executor,
    )


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
