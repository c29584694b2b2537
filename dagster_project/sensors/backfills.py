"""Sensor `backfills`: a run of its own for each backfill request of the database."""

from __future__ import annotations

import datetime as dt
from typing import Any

import dagster as dg

from dagster_project.catalogue import Catalogue
from dagster_project.jobs import BACKFILL
from dagster_project.triggers import WORK_TAG, others_go_on, result, sense_while_up
from ops.backfill.asking import RUNNING, open_requests
from ops.backfill.requests import BackfillRequest, give_back
from penstock.records import as_time
from resources.database import DatabaseResource

MOST_REQUESTS = 20
#: So many runs may die before they have claimed their request.
MOST_STARTS = 5
#: The name of a run of ours, as the request shows it, begins so.
OURS = "dagster:"


def build(catalogue: Catalogue, job: Any) -> dg.SensorDefinition:
    """The sensor."""

    @dg.sensor(
        name=catalogue.named("backfills"),
        job=job,
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Asks for a run for each backfill request that is due, at most 20 in a tick. "
        "A request whose run is gone goes back to those that wait.",
    )
    @sense_while_up(catalogue.database)
    def sensor(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SensorResult:
        requests: list[dg.RunRequest] = []
        with database.connect() as connection:
            for each in open_requests(connection):
                with others_go_on(context, f"request {each.request}"):
                    if each.state == RUNNING:
                        if why := _why_gone(context.instance, each.run):
                            give_back(connection, each, why)
                    elif _is_due(each) and len(requests) < MOST_REQUESTS:
                        requests += _run_requests(context.instance, catalogue, each)
        return result(requests, None, "no request is due")

    return sensor


def _is_due(request: BackfillRequest) -> bool:
    return as_time(request.not_before) <= dt.datetime.now(dt.UTC)


def _why_gone(instance: dg.DagsterInstance, name: str | None) -> str:
    """Why the run that holds a request will not end it; '' when it may, or is none of ours."""
    if not name or not name.startswith(OURS):
        return ""
    run = instance.get_run_by_id(name.removeprefix(OURS))
    if run is None:
        return f"the run {name} is not known any more"
    return f"the run {name} is {run.status.value}" if run.is_finished else ""


def _run_requests(
    instance: dg.DagsterInstance, catalogue: Catalogue, request: BackfillRequest
) -> list[dg.RunRequest]:
    """The run of the next attempt; another one when a run has died before it claimed."""
    work = catalogue.named(f"backfill-{request.request}-{request.attempts + 1}")
    runs = instance.get_runs(dg.RunsFilter(tags={WORK_TAG: work}))
    if any(not run.is_finished for run in runs) or len(runs) >= MOST_STARTS:
        return []
    key = f"backfill:{request.request}:{request.attempts + 1}"
    config = {"ops": {catalogue.named(BACKFILL): {"config": {"request": request.request}}}}
    return [
        dg.RunRequest(
            job_name=catalogue.named("backfill"),
            run_key=f"{key}:{len(runs)}" if runs else key,
            run_config=config,
            tags={WORK_TAG: work, "penstock/request": str(request.request)},
        )
    ]
