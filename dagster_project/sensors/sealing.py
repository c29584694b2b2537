"""Sensor `seal`: asks for a run when a log has the size or the age of a log epoch."""

from __future__ import annotations

import json
import time
from typing import Any

import dagster as dg

from dagster_project.catalogue import Catalogue
from dagster_project.jobs import SEAL
from dagster_project.triggers import (
    FAILED_TAG,
    SensorPauses,
    cursor_of,
    dump_cursor,
    is_running,
    last_run,
    result,
    sense_while_up,
)
from ops.hours import UnsealedLog, unsealed_logs
from ops.policies.policy import FOLLOWS_ANOTHER, follows
from ops.policies.settings import SealPolicy
from resources.database import DatabaseResource

VERSION = 1


def build(catalogue: Catalogue, job: Any) -> dg.SensorDefinition:
    """The sensor."""

    @dg.sensor(
        name=catalogue.named("seal"),
        job=job,
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Asks for a run of `seal` for the topics of which a partition has the size or "
        "the age of a log epoch. A topic that cannot be sealed waits, longer each time.",
    )
    @sense_while_up(catalogue.database)
    def sensor(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SensorResult:
        policies = database.policies()
        pauses = SensorPauses(cursor_of(context, VERSION).get("failed"), time.time())
        with database.connect() as connection:
            if not follows(connection, policies):
                return result([], context.cursor, f"{FOLLOWS_ANOTHER}: nothing is sealed")
            waiting = unsealed_logs(connection)
        ready = [
            each.topic for each in waiting if is_ready(each, policies.of_topic(each.topic).seal)
        ]
        if not ready:
            return result([], context.cursor, "nothing has the size or the age of a log epoch")
        if is_running(context.instance, job=job.name):
            return result([], context.cursor, "a run of seal is under way")
        _learn(last_run(context.instance, job=job.name), catalogue.named(SEAL), pauses)
        chosen = [each for each in ready if not pauses.rests(each)]
        config = {"ops": {catalogue.named(SEAL): {"config": {"topics": chosen}}}}
        requests = [dg.RunRequest(job_name=job.name, run_config=config)] if chosen else []
        cursor = dump_cursor(VERSION, failed=pauses.dump())
        return result(requests, cursor, "; ".join(pauses.said))

    return sensor


def _learn(run: dg.DagsterRun | None, op: str, pauses: SensorPauses) -> None:
    """Which topics of the last run were sealed, and which were not."""
    if run is None or not run.is_finished:
        return
    config: Any = run.run_config
    asked: list[str] = config.get("ops", {}).get(op, {}).get("config", {}).get("topics", [])
    topics = asked or [*pauses.dump()]  # none asked for by name: all of them
    failed: list[str] = []
    if run.status is dg.DagsterRunStatus.FAILURE:
        failed = json.loads(run.tags[FAILED_TAG]) if FAILED_TAG in run.tags else topics
    for topic in {*topics, *failed}:
        if topic in failed:
            pauses.failed(topic, run.run_id)
        else:
            pauses.succeeded(topic)


def is_ready(log: UnsealedLog, policy: SealPolicy | None) -> bool:
    """Whether the next log epoch of a log can be cut."""
    if policy is None:
        return False
    too_old = policy.max_age_seconds is not None and log.seconds >= policy.max_age_seconds
    return log.events >= policy.max_events or too_old
