"""Sensor `run_failures`: tells a webhook of every run that failed, until it has taken the message.

It is none of Dagster's run status sensors: those go on to the next run also when their function
has failed, so what a webhook did not take would be gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_project.triggers import Attempt, cursor_of, dump_cursor, result
from penstock.errors import PenstockError, WebhookUnavailable
from resources import webhook

if TYPE_CHECKING:
    from dagster_shared.error import SerializableErrorInfo

VERSION = 1
#: One post takes so long at most, and no post begins after so many seconds of a tick: Dagster ends
#: a tick after 60.
POST_SECONDS = 10.0
TICK_SECONDS = 30.0
#: So many messages wait in the cursor at most; later failures wait in Dagster's own records.
MOST_WAITING = 100
#: What was not taken for so long is given up, with a line in the log of the tick.
KEPT_SECONDS = 86_400.0
MOST_STEPS = 10
MOST_CHARACTERS = 2_000
#: Of the error of one step.
MOST_OF_A_STEP = 400

#: How the text of an error of ours begins.
_OURS = f"{PenstockError.__module__}."

#: What waits: for a run when it failed, and the last attempt to tell it.
Waiting = dict[str, tuple[float, Any]]


def build() -> dg.SensorDefinition:
    """The sensor."""

    @dg.sensor(
        name="run_failures",
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=60,
        description="Posts each failed run, with the first error of each failed step, as JSON with "
        f"a text to the address in {webhook.VARIABLE}; without that variable it does nothing. What "
        "the webhook does not take is posted again, with a growing pause, for a day.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        place = webhook.address()
        held = cursor_of(context, VERSION)
        if not place:  # nor is Dagster's storage opened
            return result([], dump_cursor(VERSION), f"{webhook.VARIABLE} is not set")
        if "after" not in held:
            cursor = dump_cursor(VERSION, after=_newest(context.instance), waiting={})
            return result([], cursor, "begins with the next failure")
        waiting: Waiting = dict(held["waiting"])
        after = held["after"]
        if len(waiting) < MOST_WAITING:
            after, new = _failed(context, after, MOST_WAITING - len(waiting))
            waiting |= new
        left, why = _tell(context, place, waiting)
        said = f"{len(waiting) - len(left)} told, {len(left)} wait" + (f": {why}" if why else "")
        return result([], dump_cursor(VERSION, after=after, waiting=left), said)

    return sensor


def _newest(instance: dg.DagsterInstance) -> int:
    """The id of the last failure: a webhook that comes later is not told what was before it."""
    found = instance.fetch_run_status_changes(dg.DagsterEventType.RUN_FAILURE, limit=1).records
    return found[0].storage_id if found else 0


def _failed(context: dg.SensorEvaluationContext, after: int, most: int) -> tuple[int, Waiting]:
    """The runs of this code location that failed after an event, and the id of the last event."""
    wanted = dg.RunStatusChangeRecordsFilter(
        dg.DagsterEventType.RUN_FAILURE, after_storage_id=after
    )
    found = context.instance.fetch_run_status_changes(wanted, limit=most, ascending=True).records
    runs = _runs(context.instance, [each.run_id for each in found])
    new: Waiting = {
        each.run_id: (each.timestamp, None)
        for each in found
        if each.run_id in runs and _is_ours(context, runs[each.run_id])
    }
    return (found[-1].storage_id if found else after), new


def _runs(instance: dg.DagsterInstance, ids: list[str]) -> Mapping[str, dg.DagsterRun]:
    found = instance.get_runs(dg.RunsFilter(run_ids=ids)) if ids else []
    return {run.run_id: run for run in found}


def _is_ours(context: dg.SensorEvaluationContext, run: dg.DagsterRun) -> bool:
    origin, here = run.remote_job_origin, context.code_location_origin
    return not (origin and here) or origin.location_name == here.location_name


def _tell(context: dg.SensorEvaluationContext, place: str, waiting: Waiting) -> tuple[Waiting, str]:
    """Post what is due.  Returns what waits still, and why the last one was not taken."""
    ends = time.monotonic() + TICK_SECONDS
    runs = _runs(context.instance, list(waiting))
    left: Waiting = {}
    why = ""
    for run, (failed_at, before) in waiting.items():
        attempt = Attempt.next_of(before, run, time.time())
        if attempt is None or time.monotonic() > ends:
            left[run] = (failed_at, before)
            continue
        if run not in runs:  # deleted meanwhile
            continue
        try:
            webhook.post(place, message(context.instance, runs[run]), POST_SECONDS)
        except WebhookUnavailable as error:
            why = str(error)
            context.log.warning("the run %s was not told: %s", run, why)
            if time.time() - failed_at > KEPT_SECONDS:
                context.log.error("the run %s is given up after a day", run)
            else:
                left[run] = (failed_at, attempt.dump())
    return left, why


def message(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dict[str, str]:
    """What is posted of a run; chat systems show the `text`."""
    why = "; ".join(_errors(instance, run.run_id)) or "no step says why"
    text = f"Penstock: the run {run.run_id} of {run.job_name} failed: {why}"
    return {"text": text[:MOST_CHARACTERS], "job": run.job_name, "run": run.run_id}


def _why(error: SerializableErrorInfo | None) -> str:
    """The first error of ours in a chain, which says what to do, else the one that began it."""
    said = "it failed"
    while error is not None:
        said = error.message
        if said.startswith(_OURS):
            break
        error = error.cause
    return said


def _errors(instance: dg.DagsterInstance, run: str) -> Iterator[str]:
    """The first error of each failed step, or what Dagster says of the run; without secrets."""
    kinds = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
    found = instance.get_records_for_run(run, of_type=kinds, limit=MOST_STEPS + 1).records
    told = [each.event_log_entry.dagster_event for each in found]
    events = [each for each in told if each is not None]
    steps = [each for each in events if each.is_step_failure]
    for event in steps:
        said = webhook.without_secrets(_why(event.step_failure_data.error))
        yield f"{event.step_key}: {said[:MOST_OF_A_STEP]}"
    for event in [] if steps else events:
        yield webhook.without_secrets(event.message or "")[:MOST_OF_A_STEP]
