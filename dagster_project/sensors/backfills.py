"""Sensor `backfills`: a run of its own for each backfill request of the database."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import dagster as dg

from dagster_project.catalogue import Catalogue
from dagster_project.jobs import BACKFILL
from dagster_project.triggers import (
    WORK_TAG,
    others_go_on,
    pause_after,
    result,
    sense_while_up,
)
from ops.backfill.asking import by_hand, due_requests, running_requests
from ops.backfill.requests import BackfillRequest, give_back
from resources.database import DatabaseResource

MOST_REQUESTS = 20
#: So many requests that wait are told in the reason why a tick asks for no run.
MOST_SAID = 5
#: The name of a run of ours, as the request shows it, begins so.
OURS = "dagster:"


def build(catalogue: Catalogue, job: Any) -> dg.SensorDefinition:
    """The sensor."""

    @dg.sensor(
        name=catalogue.named("backfills"),
        job=job,
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Asks for a run for each backfill request that is due, at most 20 in a tick. "
        "A request whose run is gone goes back to those that wait. After a run that has died "
        "before it claimed its request the next one waits, longer each time.",
    )
    @sense_while_up(catalogue.database)
    def sensor(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SensorResult:
        requests: list[dg.RunRequest] = []
        said: list[str] = []
        with database.connect() as connection:
            for each in running_requests(connection):
                with others_go_on(context, f"request {each.request}"):
                    if why := _why_gone(context.instance, each.run):
                        give_back(connection, each, why)
            for each in due_requests(connection):
                if len(requests) == MOST_REQUESTS:
                    break
                with others_go_on(context, f"request {each.request}"):
                    requests += _run_requests(context.instance, catalogue, each, said)
        return result(requests, None, "; ".join(said[:MOST_SAID]) or "no request is due")

    return sensor


def _why_gone(instance: dg.DagsterInstance, name: str | None) -> str:
    """Why the run that holds a request will not end it; '' when it may, or is none of ours."""
    if not name or not name.startswith(OURS):
        return ""
    run = instance.get_run_by_id(name.removeprefix(OURS))
    if run is None:
        return f"the run {name} is not known any more"
    return f"the run {name} is {run.status.value}" if run.is_finished else ""


def _run_requests(
    instance: dg.DagsterInstance, catalogue: Catalogue, request: BackfillRequest, said: list[str]
) -> list[dg.RunRequest]:
    """The run of the next attempt; another one when a run has died before it claimed."""
    work = catalogue.named(f"backfill-{request.request}-{request.attempts + 1}")
    starts = dg.RunsFilter(tags={WORK_TAG: work})
    last = next(iter(instance.get_run_records(starts, limit=1)), None)
    if last and not last.dagster_run.is_finished:
        return []
    count = instance.get_runs_count(starts)
    if last and (why := _why_rests(catalogue, request, last, count)):
        said.append(why)
        return []
    key = f"backfill:{request.request}:{request.attempts + 1}"
    config = {"ops": {catalogue.named(BACKFILL): {"config": {"request": request.request}}}}
    return [
        dg.RunRequest(
            job_name=catalogue.named("backfill"),
            run_key=f"{key}:{count}" if count else key,
            run_config=config,
            tags={WORK_TAG: work, "penstock/request": str(request.request)},
        )
    ]


def _why_rests(
    catalogue: Catalogue, request: BackfillRequest, last: dg.RunRecord, starts: int
) -> str:
    """Why nobody is asked to start a request now, and what a person can do; '' when it is time."""
    ended = last.end_time or last.create_timestamp.timestamp()
    again = ended + pause_after(starts)
    if time.time() >= again:
        return ""
    return (
        f"request {request.request} waits until "
        f"{dt.datetime.fromtimestamp(again, dt.UTC):%H:%M:%S} (UTC): {starts} runs have died "
        f"before they claimed it, the last is {last.dagster_run.run_id}. To start it now, launch "
        f"the job {catalogue.named('backfill')} with its number, or: {by_hand(request.request)}"
    )
