"""How a run works a duty off: here or on Spark, as its config says, and what it tells of it.

The duties themselves are in `ops.duties`.  A run gives them the database, the targets and the Spark
resource.  What becomes of each unit is in the log of the run and in the metadata of its asset.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import dagster as dg

from dagster_project.common import table
from ops.duties.engine import AUTO, SPARK, SQL, choose
from ops.duties.units import FAILED, LOST, DutyOutcome
from penstock.errors import InvalidArgument

#: The engine of runs whose config names none.
VARIABLE = "PENSTOCK_ENGINE"

_COLUMNS = ("duty", "topic", "partition", "subject", "state", "events", "seconds", "done by")


def config(**more: dg.Field) -> dict[str, dg.Field]:
    """The run config of a duty: its engine, and what it has besides."""
    choices = dg.Enum(
        "Engine",
        [
            dg.EnumValue(AUTO, description="spark when there is much to do, else sql"),
            dg.EnumValue(SQL, description="in the process of the run"),
            dg.EnumValue(SPARK, description="spread over the executors of Spark"),
        ],
    )
    field = dg.Field(
        choices,
        default_value=_default_engine(),
        description=f"Where the units are worked off. The default is {VARIABLE}, else auto.",
    )
    return {"engine": field, **more}


def _default_engine() -> str:
    found = os.environ.get(VARIABLE, "").strip() or AUTO
    choose(found, 0)  # says what is wrong with it
    return found


def refused(message: str, hint: str) -> dg.Failure:
    """The failure of a run whose config cannot be meant, before it has done anything.

    Dagster's own types of fields have no bounds.  To repeat such a run mends nothing.
    """
    why = InvalidArgument(message, hint=hint)
    failure = dg.Failure(str(why), allow_retries=False)
    failure.__cause__ = why
    return failure


def told(context: dg.OpExecutionContext, outcomes: Iterable[DutyOutcome]) -> list[DutyOutcome]:
    """Log what became of each unit."""
    outcomes = [*outcomes]
    for each in outcomes:
        tell = context.log.error if is_wrong(each) else context.log.info
        why = f": {each.error}" if each.error else ""
        tell("%s: %s, %s events%s", _place(each), each.state, each.events, why)
    return outcomes


def require(outcomes: Iterable[DutyOutcome]) -> None:
    """Failure when a unit has failed, or was lost.  It is repeated if that may mend a unit."""
    wrong = [each for each in outcomes if is_wrong(each)]
    if wrong:
        said = "\n".join(f"{_place(each)}: {each.error}" for each in wrong)
        raise dg.Failure(said, allow_retries=not all(each.lasts for each in wrong))


def is_wrong(outcome: DutyOutcome) -> bool:
    """Whether somebody has to look at a unit."""
    return outcome.state in {FAILED, LOST}


def metadata(outcomes: Iterable[DutyOutcome]) -> dict[str, Any]:
    """The units, for the page of an asset."""
    rows = (
        (e.unit.duty, e.unit.topic, e.unit.partition, e.unit.subject, e.state, e.events,
         f"{e.seconds:.2f}", e.worker)
        for e in outcomes
    )  # fmt: skip
    return {"units": table(_COLUMNS, rows)}


def _place(outcome: DutyOutcome) -> str:
    unit = outcome.unit
    found = [unit.duty, unit.topic, unit.subject]
    if unit.partition is not None:
        found.append(f"partition {unit.partition}")
    return " ".join(each for each in found if each)
