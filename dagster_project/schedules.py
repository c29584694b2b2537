"""Schedules: what is done by the clock; they run by default.

What is done because something happened has a sensor.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

import dagster as dg

from dagster_project.catalogue import Catalogue
from dagster_project.triggers import is_running, ran_since, skip_while_down
from ops.policies.policy import drift
from penstock import subscriptions
from resources.database import DatabaseResource

RUNNING = dg.DefaultScheduleStatus.RUNNING

Evaluated = dg.RunRequest | dg.SkipReason

#: Dead letters by age and staged events of a day ago can wait for so long; leases cannot.
SWEEP_AT_LEAST_EVERY = dt.timedelta(hours=1)

#: For each job when it runs, and what for.
PLAIN = {
    "health": (
        "7 * * * *",
        "health_every_hour",
        (
            "Reports what is wrong with the command that mends it, with plots of lag and rates, "
            "and makes the checks that only look."
        ),
    ),
    "canary": (
        "12 * * * *",
        "canary_every_hour",
        "Sends one event the whole way, as applications do, and measures each part of it.",
    ),
    "clean": (
        "17 * * * *",
        "clean_every_hour",
        "Reads back what retention lets go, then removes it. No daemon does that.",
    ),
    "storage": (
        "27 * * * *",
        "storage_every_hour",
        "Drops the tables of the log that retention has emptied.",
    ),
    "audit": (
        "47 * * * *",
        "audit_every_hour",
        "Looks whether the file of every recorded copy is there, and reads a share of them back.",
    ),
    "inspect": (
        "33 4 * * *",
        "inspect_every_day",
        "Reads the newest copy of each topic back on each target, and looks at its columns.",
    ),
    "tidy": (
        "43 3 * * *",
        "tidy_every_day",
        "Removes what killed archive runs have left on the targets.",
    ),
}


def build(catalogue: Catalogue, jobs: Iterable[Any]) -> list[dg.ScheduleDefinition]:
    """The schedules of the jobs that there are."""
    by_name = {job.name: job for job in jobs}
    found = [
        dg.ScheduleDefinition(
            catalogue.named(name),
            job=by_name[catalogue.named(job)],
            cron_schedule=cron,
            default_status=RUNNING,
            description=description,
        )
        for job, (cron, name, description) in PLAIN.items()
        if catalogue.named(job) in by_name
    ]
    return [
        *found,
        _policies(catalogue, by_name[catalogue.named("policies")]),
        _sweep(catalogue, by_name[catalogue.named("sweep")]),
    ]


def _policies(catalogue: Catalogue, job: Any) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=catalogue.named("policies_every_five_minutes"),
        job=job,
        cron_schedule="*/5 * * * *",
        default_status=RUNNING,
        description="Applies the policy file when the database differs from it.",
    )
    @skip_while_down(catalogue.database)
    def schedule(context: dg.ScheduleEvaluationContext, database: DatabaseResource) -> Evaluated:
        with database.connect() as connection:
            if not any(each.mendable for each in drift(connection, database.policies())):
                return dg.SkipReason("the database follows the policy file")
        if is_running(context.instance, job=job.name):
            return dg.SkipReason("a run of policies is under way")
        return dg.RunRequest()

    return schedule


def _sweep(catalogue: Catalogue, job: Any) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=catalogue.named("sweep_every_five_minutes"),
        job=job,
        cron_schedule="*/5 * * * *",
        default_status=RUNNING,
        description="Frees the leases of dead consumers when there are any, and once an hour what "
        "is old. The daemon does it every few seconds; this is for when none runs.",
    )
    @skip_while_down(catalogue.database)
    def schedule(context: dg.ScheduleEvaluationContext, database: DatabaseResource) -> Evaluated:
        with database.connect() as connection:
            is_dead = any(not each.live for each in subscriptions.members(connection))
        if is_running(context.instance, job=job.name):
            return dg.SkipReason("a run of sweep is under way")
        since = dt.datetime.now(dt.UTC) - SWEEP_AT_LEAST_EVERY
        if not is_dead and ran_since(context.instance, job.name, since):
            return dg.SkipReason("no consumer is dead, and a sweep was made within the hour")
        return dg.RunRequest()

    return schedule
