"""Schedules: relay, sweep, seal, clean, tidy, policies and health; they run by default."""

from __future__ import annotations

from typing import Any

import dagster as dg

from dagster_project.catalogue import Catalogue
from dagster_project.duties import Duties
from dagster_project.triggers import is_running, skip_while_down
from ops.policies.file import load
from ops.policies.policy import drift
from ops.seal import log_epochs
from penstock import subscriptions
from penstock.errors import TopicNotFound
from penstock.topics import names
from resources.database import DatabaseResource

RUNNING = dg.DefaultScheduleStatus.RUNNING

Evaluated = dg.RunRequest | dg.SkipReason


def build(catalogue: Catalogue, duties: Duties) -> dg.Definitions:
    """The schedules of the jobs that there are."""
    found = [_sweep(duties), _seal(catalogue, duties), _policies(duties), _health(duties)]
    if duties.relay:
        found.append(_relay(catalogue, duties))
    if duties.clean:
        found.append(_clean(duties))
    if duties.archive:
        found.append(_tidy(duties))
    return dg.Definitions(schedules=found)


def _relay(catalogue: Catalogue, duties: Duties) -> dg.ScheduleDefinition:
    relayed = {relay.subscription for relay in catalogue.policies.relays.values()}

    @dg.schedule(
        name="relay_every_minute",
        job=duties.relay,
        cron_schedule="* * * * *",
        default_status=RUNNING,
        description="Relays a backlog that no daemon holds.",
    )
    @skip_while_down
    def schedule(context: dg.ScheduleEvaluationContext, database: DatabaseResource) -> Evaluated:
        with database.connect() as connection:
            lags = [each for each in subscriptions.lag(connection) if each.subscription in relayed]
        waiting = [each for each in lags if each.lag_events]
        if not waiting:
            return dg.SkipReason("every relay has sent all there is")
        if all(each.holder for each in waiting):
            return dg.SkipReason("a daemon holds every partition that has events to relay")
        return _unless_running(context, "relay")

    return schedule


def _sweep(duties: Duties) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        "sweep_every_five_minutes",
        job=duties.sweep,
        cron_schedule="*/5 * * * *",
        default_status=RUNNING,
        description="The daemon sweeps every few seconds; this is for when none runs.",
    )


def _seal(catalogue: Catalogue, duties: Duties) -> dg.ScheduleDefinition:
    sealed = [policy for policy in catalogue.policies.topics.values() if policy.seal]

    @dg.schedule(
        name="seal_every_five_minutes",
        job=duties.seal,
        cron_schedule="*/5 * * * *",
        default_status=RUNNING,
        description="Seals what has the size or the age of a log epoch.",
    )
    @skip_while_down
    def schedule(context: dg.ScheduleEvaluationContext, database: DatabaseResource) -> Evaluated:
        with database.connect() as connection:
            if not any(_unsealed(connection, policy.topic) for policy in sealed):
                return dg.SkipReason("every event that is in a log is sealed")
        return _unless_running(context, "seal")

    return schedule


def _clean(duties: Duties) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        "clean_every_hour",
        job=duties.clean,
        cron_schedule="17 * * * *",
        default_status=RUNNING,
        description="Reads back what retention lets go, then removes it. No daemon does that.",
    )


def _tidy(duties: Duties) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        "tidy_every_day",
        job=duties.tidy,
        cron_schedule="43 3 * * *",
        default_status=RUNNING,
        description="Removes what killed archive runs have left on the targets.",
    )


def _policies(duties: Duties) -> dg.ScheduleDefinition:
    @dg.schedule(
        name="policies_every_five_minutes",
        job=duties.policies,
        cron_schedule="*/5 * * * *",
        default_status=RUNNING,
        description="Applies the policy file when the database differs from it.",
    )
    @skip_while_down
    def schedule(context: dg.ScheduleEvaluationContext, database: DatabaseResource) -> Evaluated:
        with database.connect() as connection:
            if not any(each.mendable for each in drift(connection, load())):
                return dg.SkipReason("the database follows the policy file")
        return _unless_running(context, "policies")

    return schedule


def _health(duties: Duties) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        "health_every_half_hour",
        job=duties.health,
        cron_schedule="7,37 * * * *",
        default_status=RUNNING,
    )


def _unless_running(context: dg.ScheduleEvaluationContext, job: str) -> Evaluated:
    if is_running(context.instance, job=job):
        return dg.SkipReason(f"a run of {job} is under way")
    return dg.RunRequest()


def _unsealed(connection: Any, topic: str) -> bool:
    """Whether a partition has events above its last log epoch."""
    try:
        ends = {each.partition: each.last_sequence for each in log_epochs(connection, topic)}
        described = names.describe_topic(connection, topic)
    except TopicNotFound:
        return False
    return any(each.high_watermark > ends.get(each.partition, 0) for each in described.partitions)
