"""The platform's part of the demo: relay, seal, archive and clean, each a job of Dagster.

It runs in a process of its own (``python -m tools.demo.platform``), because Dagster's definitions
read the environment when they are loaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tools.demo.figures import relayed, relayed_events
from tools.demo.report import Outcome
from tools.demo.stage import (
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    SUBSCRIPTION,
    TOPIC,
    DemoFailed,
    Stage,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import dagster as dg

    from penstock.archive.targets import Target

ROOT = Path(__file__).resolve().parents[2]
#: The name that Dagster gives definitions without a repository.
REPOSITORY = "__repository__"
TARGET = "local"
EVENTS_PER_EPOCH = 2000
POLICIES = f"""\
# The policies of the demo; Dagster applies them.
targets:
  {TARGET}: archive

topics:
  {TOPIC}:
    owner: team:bank
    seal: {{max_events: {EVENTS_PER_EPOCH}, max_age: 0s}}
    archive: [{TARGET}]
    retention: {{minimum_age: 0s, copies: 1}}

relays:
  bank-file:
    topic: {TOPIC}
    sink: jsonl:relay

# As the stage has set them before there was a file: without them the check policy_drift would warn.
subscriptions:
  {SUBSCRIPTION}:
    heartbeat:
      heartbeat_seconds: {HEARTBEAT_SECONDS}
      lease_seconds: {LEASE_SECONDS}
      release_seconds: {LEASE_SECONDS}
"""


def run(stage: Stage, outcome: Outcome) -> None:
    """Run the jobs, and add what the relayed files and the archive say to the outcome."""
    begun = time.monotonic()
    home = stage.directory / "dagster"
    home.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).parents[1] / "dagster.yaml", home / "dagster.yaml")
    (stage.directory / "policies.yaml").write_text(POLICIES, encoding="utf-8")
    answer = stage.directory / "platform.json"
    answer.unlink(missing_ok=True)
    environment = {
        "PENSTOCK_DATABASE_URL": stage.url,
        "PENSTOCK_POLICIES": str(stage.directory / "policies.yaml"),
        "DAGSTER_HOME": str(home),
    }
    log = stage.log_file("dagster")
    with log.open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "tools.demo.platform", str(answer)],
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            env=os.environ | environment,
        )
    if done.returncode != 0:
        raise DemoFailed(f"Dagster's part failed: {log.read_text(errors='replace')[-1500:]}")
    told = json.loads(answer.read_text(encoding="utf-8"))
    outcome.relay = relayed(stage.directory / "relay")
    outcome.relayed_events = relayed_events(stage.directory / "relay")
    outcome.archive = {int(account): balance for account, balance in told["balances"].items()}
    outcome.archived_events = told["events"]
    outcome.notes += told["notes"]
    outcome.platform_seconds = time.monotonic() - begun


def _operate(answer: Path) -> None:
    """Runs in the separate process: the jobs, one after the other."""
    from dagster import DagsterInstance

    from dagster_project.catalogue import read
    from dagster_project.definitions import build

    defs = build(read())
    with DagsterInstance.get() as instance:
        for job in ("policies", "sequence", "relay", "seal"):
            _execute(defs, instance, job)
        _archive(defs, instance)
        balances, events = _balances()
        log = _history()
        for job in ("clean", "storage", "sweep", "health"):
            _execute(defs, instance, job)
    answer.write_text(
        json.dumps({"balances": balances, "events": events, "notes": [*_cleaned(), _compare(log)]}),
        encoding="utf-8",
    )


def _execute(
    defs: dg.Definitions, instance: dg.DagsterInstance, job: str, tags: dict[str, str] | None = None
) -> None:
    """Run a job in this process, so that one Spark is enough, as the job of the code location.

    Without an origin Dagster's pages show a run under no job, and not on the timeline.
    """
    # Not exported by `dagster`; its own `dagster dev` finds the code location in this way.
    from dagster._core.definitions.job_base import InMemoryJob
    from dagster._core.execution.api import execute_run
    from dagster._core.remote_origin import RemoteRepositoryOrigin
    from dagster._core.workspace.load import location_origins_from_yaml_paths

    definition = defs.resolve_job_def(job)
    (location,) = location_origins_from_yaml_paths([str(ROOT / "workspace.yaml")])
    repository = RemoteRepositoryOrigin(location, REPOSITORY)
    run = instance.create_run_for_job(
        definition,
        tags={**definition.run_tags, **(tags or {})},
        remote_job_origin=repository.get_job_origin(job),
    )
    if not execute_run(InMemoryJob(definition), run, instance).success:
        raise DemoFailed(f"the job {job} failed")


def _archive(defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
    """Archive all hours in one run, as a backfill from Dagster's pages does."""
    from dagster_project.common import hour_name
    from ops.hours import changed_hours
    from penstock import database
    from penstock.database import config

    with database.connect(config.database_url()) as connection:
        hours = sorted({hour_name(each.hour) for each in changed_hours(connection)})
    if not hours:
        raise DemoFailed("no log epoch was sealed")
    _execute(
        defs,
        instance,
        "archive",
        tags={
            "dagster/asset_partition_range_start": hours[0],
            "dagster/asset_partition_range_end": hours[-1],
        },
    )


def _balances() -> tuple[dict[int, int], int]:
    """The sum for each account over the archive, by the Spark data source."""
    from pyspark.sql import functions as f

    import penstock.spark
    from resources.spark import SparkResource

    spark = SparkResource().session()
    penstock.spark.register(spark)
    archive = (
        spark.read.format("penstock")
        .options(topic=TOPIC, source="cold", targets=json.dumps({TARGET: _target().uri}))
        .schema("payload binary")
        .load()
    )
    told = f.from_json(f.col("payload").cast("string"), "account long, delta long")
    events = archive.select(told.alias("told"))
    rows = events.groupBy("told.account").agg(f.sum("told.delta"), f.count("*")).collect()
    return {row[0]: row[1] for row in rows if row[1]}, sum(row[2] for row in rows)


def _target() -> Target:
    from ops.policies.file import load

    return load().target(TARGET)


def _history(targets: Sequence[Target] = ()) -> list[tuple[int, str]]:
    """How many events FETCH reads of each partition, and their checksum."""
    from penstock import archive, database
    from penstock.archive.checksum import EpochChecksum
    from penstock.database import config
    from penstock.topics import names

    url = config.database_url()
    with database.connect(url) as connection:
        partitions = names.describe_topic(connection, TOPIC).partitions
    found = []
    for partition in range(len(partitions)):
        seen = EpochChecksum()
        with archive.read(url, TOPIC, partition, targets=targets) as reader:
            for batch in reader:
                seen.add(batch)
        found.append((seen.event_count, seen.hexdigest()))
    return found


def _compare(log: list[tuple[int, str]]) -> str:
    """That FETCH reads after retention what the log held before."""
    if _history([_target()]) != log:
        raise DemoFailed("after retention, FETCH does not read what the log held before")
    events = sum(each for each, _ in log)
    return f"the whole history by FETCH over hot and cold equals the log: {events} events"


def _cleaned() -> list[str]:
    """What retention removed."""
    from penstock import database
    from penstock.database import config

    with database.connect(config.database_url()) as connection:
        row = connection.execute(
            """
            SELECT (SELECT count(*) FROM penstock.log_epochs WHERE dropped_at IS NOT NULL),
                   (SELECT count(*) FROM penstock.log_epochs),
                   (SELECT min(first_id) - 1 FROM penstock.slices WHERE parent = 'events')
            """
        ).fetchone()
    assert row is not None
    if row[0] != row[1] or row[2] == 0:
        raise DemoFailed(f"clean dropped {row[0]} of {row[1]} log epochs, {row[2]} ids of storage")
    return [f"{row[0]} of {row[1]} log epochs dropped, the storage of {row[2]} ids given back"]


if __name__ == "__main__":
    _operate(Path(sys.argv[1]))
