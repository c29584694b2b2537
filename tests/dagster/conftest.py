"""A complete setting for each test: database, policy file, definitions and a Dagster instance."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import penstock
from penstock.archive.contents import read_contents
from penstock.database import call

if TYPE_CHECKING:
    import dagster as dg

TOPIC = "shop/orders"
EPOCH_EVENTS = 10

POLICIES = f"""
targets: {{local: archive}}
topics:
  {TOPIC}:
    owner: team:shop
    seal: {{max_events: {EPOCH_EVENTS}, max_age: 0s}}
    archive: [local]
    retention: {{minimum_age: 0s, copies: 1}}
relays:
  shop-file: {{topic: {TOPIC}, sink: "jsonl:relayed"}}
limits: {{unsequenced: 0, relay_lag: 0, consumer_lag: 1h}}
"""


#: pytest sets the filter of dagster_project.definitions aside, so its message stands here again.
NOT_OURS = (
    ":DeprecationWarning",
    ":ResourceWarning",
    ":FutureWarning",
    "Parameter .owners. of initializer .SensorDefinition",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings that Dagster, Spark and their libraries raise about themselves are not ours."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.dagster)
            for each in NOT_OURS:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{each}"))


@dataclass
class House:
    """Everything that one test works on."""

    folder: Path
    url: str
    connection: psycopg.Connection[tuple[Any, ...]]
    instance: dg.DagsterInstance
    defs: dg.Definitions
    cursors: dict[str, str | None] = field(default_factory=dict)
    automation: Any = None

    def job(self, name: str, **options: Any) -> dg.ExecuteInProcessResult:
        """Run a job in this process; its failure is in the result."""
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        config = {**(options.pop("run_config", None) or {}), **quiet}
        return self.defs.resolve_job_def(name).execute_in_process(
            instance=self.instance, raise_on_error=False, run_config=config, **options
        )

    def reload(self) -> None:
        """Load the code location again, for another policy file or another topic."""
        from dagster_project.catalogue import read
        from dagster_project.definitions import build

        self.defs = build(read())

    def done(self, name: str, **options: Any) -> dg.ExecuteInProcessResult:
        """Run a job that has to succeed."""
        result = self.job(name, **options)
        assert result.success, failures(result)
        return result

    def sense(self, name: str) -> dg.SensorExecutionData:
        """One tick of a sensor, as the daemon makes it: its events and its cursor take effect."""
        import dagster as dg

        definition = self.defs.resolve_sensor_def(name)
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursors.get(name),
            sensor_name=name,
            repository_def=self.defs.get_repository_def(),
            resources=dict(self.defs.resources or {}),
        )
        with context:
            done = definition.evaluate_tick(context)
        for event in done.asset_events:
            self.instance.report_runless_asset_event(event)
        self.cursors[name] = done.cursor
        return done

    def conditions(self, at: dt.datetime) -> dg.EvaluateAutomationConditionsResult:
        """One tick of the automation sensor at a time; nothing is run."""
        import dagster as dg

        sensor: Any = self.defs.resolve_sensor_def("automation")
        found = dg.evaluate_automation_conditions(
            self.defs,
            instance=self.instance,
            asset_selection=sensor.asset_selection,
            cursor=self.automation,
            evaluation_time=at,
        )
        self.automation = found.cursor
        return found

    def due(self, key: dg.AssetKey, at: dt.datetime) -> set[str]:
        """The partitions of an asset for which automation asks for a run at a time."""
        return set(self.conditions(at).get_requested_partitions(key) - {None})  # type: ignore[arg-type]

    def runs_asked_for(self, at: dt.datetime) -> list[dg.RunRequest]:
        """The runs for which the daemon would ask at a time, after `conditions`."""
        # Not exported by `dagster`.
        from dagster._core.definitions.automation_tick_evaluation_context import (
            AutomationTickEvaluationContext,
        )

        sensor: Any = self.defs.resolve_sensor_def("automation")
        asked, _, _ = AutomationTickEvaluationContext(
            evaluation_id=1,
            instance=self.instance,
            asset_graph=self.defs.resolve_asset_graph(),
            cursor=self.automation,
            materialize_run_tags={},
            observe_run_tags={},
            auto_observe_asset_keys=None,  # type: ignore[arg-type]
            asset_selection=sensor.asset_selection,
            logger=logging.getLogger(__name__),
            emit_backfills=sensor.emit_backfills,
            evaluation_time=at,
        ).evaluate()
        return list(asked)

    def hours(self) -> list[str]:
        """The hours in which something was sealed, as partitions."""
        from dagster_project.common import hour_name
        from ops.hours import changed_hours

        changed = changed_hours(self.connection)
        return sorted({hour_name(each.hour) for each in changed})

    def archive(self, **options: Any) -> list[dg.ExecuteInProcessResult]:
        """Archive every hour, each in a run of its own, as automation asks for them."""
        tags = {"dagster/from_automation_condition": "true"} | options.pop("tags", {})
        return [
            self.job("archive", partition_key=hour, tags=tags, **options) for hour in self.hours()
        ]

    def asked(self, done: dg.SensorExecutionData) -> list[dg.ExecuteInProcessResult]:
        """Run what a sensor asked for; it has to succeed."""
        return [
            self.done(
                request.job_name or "",
                run_config=request.run_config,
                tags=dict(request.tags),
                asset_selection=request.asset_selection,
            )
            for request in done.run_requests or []
        ]

    def create_topic(self, partitions: int = 2) -> None:
        """The topic of the policy file, and what Dagster has for it."""
        penstock.create_topic(self.connection, TOPIC, partitions, create_namespaces=True)
        self.reload()

    def publish(self, count: int) -> None:
        """That many events, in turns over the partitions."""
        penstock.publish_batch(
            self.connection,
            [penstock.Message(TOPIC, b"%d" % n, partition=n % 2) for n in range(count)],
        )

    def low_sequences(self) -> list[int]:
        """Where each partition begins."""
        return [low for _, low in call(self.connection, "low_sequences", topic=TOPIC)]

    def low_sequences_or_none(self) -> list[int] | None:
        """The same, or None while there is no topic."""
        try:
            return self.low_sequences()
        except penstock.TopicNotFound:
            return None

    def copies(self) -> dict[tuple[int, int, str], str]:
        """The state of every copy by (partition, log epoch, target)."""
        rows = call(self.connection, "copies_of", topic=TOPIC)
        return {(partition, epoch, target): state for partition, epoch, target, state, *_ in rows}

    def archived_file(self) -> Path:
        """The file of the first log epoch of partition 0."""
        files = (self.folder / "archive").glob("*/sealed_date=*/*.parquet")
        return next(each for each in files if read_contents(each)[0].key == (0, 1))


def failures(result: dg.ExecuteInProcessResult) -> str:
    """Why steps failed, in the words of the innermost errors."""
    said = []
    for event in result.all_events:
        error = event.step_failure_data.error if event.is_step_failure else None
        while error is not None and error.cause is not None:
            error = error.cause
        if error is not None:
            said.append(f"{event.step_key}: {error.message[-3000:]}")
    return "\n".join(said)


@pytest.fixture
def policy_path(tmp_path: Path) -> Path:
    """A policy file of the test's own."""
    path = tmp_path / "policies.yaml"
    path.write_text(POLICIES, encoding="utf-8")
    return path


@pytest.fixture
def environment(
    monkeypatch: pytest.MonkeyPatch, database_url: str, policy_path: Path
) -> pytest.MonkeyPatch:
    """The environment that points at the test's database and policy file."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", database_url)
    monkeypatch.setenv("PENSTOCK_POLICIES", str(policy_path))
    for name in ("PENSTOCK_TOPICS", "PENSTOCK_EMBEDDED", "PENSTOCK_WEBHOOK_URL"):
        monkeypatch.delenv(name, raising=False)
    from dagster_project import catalogue

    catalogue._of_this_process.cache_clear()
    return monkeypatch


@pytest.fixture
def house(
    environment: pytest.MonkeyPatch,
    tmp_path: Path,
    database_url: str,
    connection: psycopg.Connection[tuple[Any, ...]],
) -> Iterator[House]:
    """A house whose topic does not exist yet; nothing has run."""
    import dagster as dg

    from dagster_project import common
    from dagster_project.catalogue import read
    from dagster_project.definitions import build
    from resources.database import engine

    environment.setattr(common, "RETRY", dg.RetryPolicy(max_retries=0))
    # In memory: a storage in files is migrated for seconds, for each test.
    with dg.DagsterInstance.ephemeral() as instance:
        yield House(tmp_path, database_url, connection, instance, build(read()))
    engine(database_url).dispose()
