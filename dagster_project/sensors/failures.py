"""Sensor `run_failures`: tells a webhook of every run that failed."""

from __future__ import annotations

import json
import os
import urllib.request

import dagster as dg

from penstock.errors import ConfigurationError

#: The address, often a secret itself: only from the environment, never in configuration or logs.
VARIABLE = "PENSTOCK_WEBHOOK_URL"
TIMEOUT_SECONDS = 10
MOST_CHARACTERS = 2_000


def build() -> dg.SensorDefinition:
    """The sensor."""

    @dg.run_failure_sensor(
        name="run_failures",
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=30,
        description=f"Posts each failed run as JSON with a text to the address in {VARIABLE}; "
        "without that variable it does nothing.",
    )
    def sensor(context: dg.RunFailureSensorContext) -> dg.SkipReason | None:
        address = os.environ.get(VARIABLE, "").strip()
        if not address:
            return dg.SkipReason(f"{VARIABLE} is not set")
        run = context.dagster_run
        why = context.failure_event.message or "it failed"
        post(address, run.job_name, run.run_id, why)
        return None

    return sensor


def post(address: str, job: str, run: str, why: str) -> None:
    """Post a failure; chat systems show the `text`."""
    text = f"Penstock: the run {run} of {job} failed: {why}"[:MOST_CHARACTERS]
    body = json.dumps({"text": text, "job": job, "run": run}).encode()
    if not address.startswith(("https://", "http://")):
        raise ConfigurationError(
            f"{VARIABLE} is no address of a web server", hint="it begins with https://"
        )
    request = urllib.request.Request(
        address, data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):
            pass
    except OSError as error:
        # Without the address, which may hold a token.
        raise ConfigurationError(
            f"the webhook of {VARIABLE} did not take the message: {type(error).__name__}",
            hint="look whether the address is right and can be reached",
        ) from None
