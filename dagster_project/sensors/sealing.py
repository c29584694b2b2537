"""Sensor `seal`: asks for a run when a log has the size or the age of a log epoch."""

from __future__ import annotations

from typing import Any

import dagster as dg

from dagster_project.catalogue import Catalogue
from dagster_project.jobs import SEAL
from dagster_project.triggers import is_running, result, sense_while_up
from ops.hours import UnsealedLog, unsealed_logs
from ops.policies.file import SealPolicy
from resources.database import DatabaseResource


def build(catalogue: Catalogue, job: Any) -> dg.SensorDefinition:
    """The sensor."""

    @dg.sensor(
        name=catalogue.named("seal"),
        job=job,
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Asks for a run of `seal` for the topics of which a partition has the size or "
        "the age of a log epoch.",
    )
    @sense_while_up(catalogue.database)
    def sensor(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SensorResult:
        policies = database.policies()
        with database.connect() as connection:
            waiting = unsealed_logs(connection)
        ready = [
            each.topic for each in waiting if is_ready(each, policies.of_topic(each.topic).seal)
        ]
        if not ready:
            return result([], None, "nothing has the size or the age of a log epoch")
        if is_running(context.instance, job=job.name):
            return result([], None, "a run of seal is under way")
        config = {"ops": {catalogue.named(SEAL): {"config": {"topics": ready}}}}
        return result([dg.RunRequest(job_name=job.name, run_config=config)], None, "")

    return sensor


def is_ready(log: UnsealedLog, policy: SealPolicy | None) -> bool:
    """Whether the next log epoch of a log can be cut."""
    if policy is None:
        return False
    too_old = policy.max_age_seconds is not None and log.seconds >= policy.max_age_seconds
    return log.events >= policy.max_events or too_old
