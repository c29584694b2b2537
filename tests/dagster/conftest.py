"""A complete setting for each test: database, policy file, definitions and a Dagster instance."""

from __future__ import annotations

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
EPOCH_EVENTS = 25

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
    run_keys: list[str] = field(default_factory=list)

    def job(self, name: str, **options: Any) -> dg.ExecuteInProcessResult:
        """Run a job in this process; its failure is in the result."""
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        config = {**(options.pop("run_config", None) or {}), **quiet}
        return self.defs.resolve_job_def(name).execute_in_process(
            instance=self.instance, raise_on_error=False, run_config=config, **options
        )

    def reload(self) -> None:
        """Load the code location again, for another policy file."""
        from dagster_project.definitions import build

        self.defs = build()

    def done(self, name: str, **options: Any) -> dg.ExecuteInProcessResult:
        """Run a job that has to succeed."""
        result = self.job(name, **options)
        assert result.success, failures(result)
        return result

    def sense(self, name: str) -> dg.SensorExecutionData:
        """One tick of a sensor, as the daemon makes it: partitions and cursor take effect."""
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
        for change in done.dynamic_partitions_requests or []:
            if isinstance(change, dg.AddDynamicPartitionsRequest):
                self.instance.add_dynamic_partitions(
                    change.partitions_def_name, change.partition_keys
                )
        self.cursors[name] = done.cursor
        return done

    def asked(self, done: dg.SensorExecutionData) -> list[dg.ExecuteInProcessResult]:
        """Run what a sensor asked for; it has to succeed."""
        return [
            self.done(
                request.job_name or "", run_config=request.run_config, tags=dict(request.tags)
            )
            for request in done.run_requests or []
        ]

    def create_topic(self, partitions: int = 2) -> None:
        """The topic of the policy file."""
        penstock.create_topic(self.connection, TOPIC, partitions, create_namespaces=True)

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
    monkeypatch.delenv("PENSTOCK_TOPICS", raising=False)
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

    from dagster_project.definitions import build
    from resources.database import engine

    with dg.instance_for_test() as instance:
        yield House(tmp_path, database_url, connection, instance, build())
    engine(database_url).dispose()
