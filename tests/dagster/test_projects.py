"""`penstock.dagster` in a project of a user's own: the example, loaded and run."""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest

import penstock
from dagster_project.catalogue import read
from ops.seal import seal
from penstock.dagster import EventRange, SequenceRange, on_events, sensing, topic_key
from penstock.errors import ConfigurationError, InvalidArgument, UsageError
from penstock.log.histories import reconcile
from penstock.subscriptions import lag, stream
from penstock.subscriptions.overview import Lag
from penstock.upkeep.sequencing import sequence
from tests.dagster.conftest import TOPIC
from tests.kit.proof import proves

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "dagster" / "definitions.py"
SUBSCRIPTION = "new-orders-on-events"

Connection = psycopg.Connection[tuple[Any, ...]]


class Project:
    """The example, and the runs that its sensor asks for."""

    def __init__(self, module: Any, url: str, own: Connection, instance: Any) -> None:
        self.module, self.url, self.own, self.instance = module, url, own, instance
        self.cursor: str | None = None
        self.sensor: dg.SensorDefinition = module.defs.resolve_sensor_def("new_orders_on_events")

    def publish(self, count: int) -> None:
        """Orders of 10 each, sequenced."""
        for number in range(count):
            penstock.publish(self.own, TOPIC, b'{"amount": 10}', partition=number % 2)
        sequence(self.url)

    def tick(self) -> dg.SensorExecutionData:
        """One tick of the sensor, as the daemon makes it."""
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            sensor_name=self.sensor.name,
            repository_def=self.module.defs.get_repository_def(),
            resources=self.module.defs.resources,
        ) as context:
            done = self.sensor.evaluate_tick(context)
        self.cursor = done.cursor
        return done

    def ask(self) -> dg.RunRequest:
        """The run that a tick asks for."""
        (request,) = self.tick().run_requests or []
        return request

    def run(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        """Make the asset as it was asked for."""
        return dg.materialize(
            [self.module.new_orders],
            instance=self.instance,
            run_config=request.run_config,
            tags=dict(request.tags),
            resources=self.module.defs.resources,
            raise_on_error=False,
        )

    def positions(self) -> list[int]:
        """How far the subscription is, by partition."""
        return [each.position for each in lag(self.own, SUBSCRIPTION)]


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str, connection: Connection
) -> Iterator[Project]:
    """The example over a topic of two partitions."""
    penstock.create_topic(connection, TOPIC, 2, create_namespaces=True)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", database_url)
    monkeypatch.setenv("ORDERS_FOLDER", str(tmp_path / "orders"))
    spec = importlib.util.spec_from_file_location("orders_project", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with dg.DagsterInstance.ephemeral() as instance:
        yield Project(module, database_url, connection, instance)


def test_an_asset_is_made_from_the_events_that_arrived(project: Project) -> None:
    """Each run gets the range that follows the last one; the subscription knows how far it is."""
    assert "no event has arrived" in (project.tick().skip_message or "")
    project.publish(6)
    first = project.ask()
    assert project.run(first).success
    project.publish(2)
    assert project.positions() == [0, 0]
    second = project.ask()
    assert project.positions() == [3, 3]
    assert project.run(second).success
    assert "no event has arrived" in (project.tick().skip_message or "")
    assert project.positions() == [4, 4]
    files = sorted((project.module.FOLDER).iterdir())
    assert [each.name for each in files] == ["0.1-3_1.1-3.json", "0.4-4_1.4-4.json"]
    assert [len(json.loads(each.read_text())) for each in files] == [6, 2]


def test_the_name_of_many_partitions_is_short_and_its_own(tmp_path: Path) -> None:
    """Guard: LONGEST_NAME, and the digest of the whole name."""

    def name(partitions: int, last: int = 10**18) -> str:
        parts = [SequenceRange(partition=n, first=n + 1, last=10**18) for n in range(partitions)]
        parts[-1] = parts[-1].model_copy(update={"last": last})
        assert (
            EventRange(topic=TOPIC, ranges=parts[::-1]).name
            == EventRange(topic=TOPIC, ranges=parts).name
        )
        return EventRange(topic=TOPIC, ranges=parts).name

    every = {
        name(partitions, last) for partitions in range(1, 500, 13) for last in (10**18, 10**17)
    }
    assert len(every) == 78 and max(map(len, every)) <= 100
    assert name(500).startswith("0.1-1000000000000000000_1.2-1000000000000000000_")
    assert "_" not in name(500)[-32:]
    (tmp_path / f"{name(24)}.json").write_text("[]")


@proves("a user's asset skips no event")
def test_a_range_whose_run_failed_is_asked_for_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing after it before: no event is skipped.

    Guard: _Source.tick, which moves the position only behind a run that has succeeded.
    """
    project.publish(2)
    first = project.ask()
    monkeypatch.setattr(project.module, "FOLDER", Path("/dev/null/no folder"))
    assert not project.run(first).success
    project.publish(2)
    assert "it waits" in (project.tick().skip_message or "")
    monkeypatch.setattr("time.time", lambda: dt.datetime.now().timestamp() + 61)
    again = project.ask()
    assert again.run_config == first.run_config and again.run_key != first.run_key
    monkeypatch.undo()
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", project.url)
    assert project.run(again).success
    assert project.ask().run_config != first.run_config
    assert project.positions() == [1, 1]


def test_no_second_run_while_one_is_under_way_and_a_lost_cursor_loses_nothing(
    project: Project,
) -> None:
    project.publish(2)
    first = project.ask()
    run = dg.DagsterRun(job_name="x", tags=dict(first.tags), status=dg.DagsterRunStatus.STARTED)
    project.instance.add_run(run)
    assert "is under way" in (project.tick().skip_message or "")
    old = '{"version": 1, "asked": [[[0, 1, 1]], 1, 0.0]}'
    for cursor in ("no JSON", "[]", '{"version": 99, "asked": 1}', old, None):
        project.cursor = cursor
        assert project.ask().run_config == first.run_config


def done_once(project: Project) -> dg.RunRequest:
    """Four events, the run for them, and the tick that records it."""
    project.publish(4)
    request = project.ask()
    assert project.run(request).success
    assert "no event has arrived" in (project.tick().skip_message or "")
    assert project.positions() == [2, 2]
    return request


def read_again(project: Project, before: dg.RunRequest) -> None:
    """The same events are asked for by another name, and count once that run has succeeded."""
    again = project.ask()
    assert again.run_config == before.run_config
    # Dagster makes no second run of one key, and a tag finds the first one.
    assert again.run_key != before.run_key and again.tags != before.tags
    assert project.positions() == [0, 0]
    assert project.run(again).success
    project.tick()
    assert project.positions() == [2, 2]


@proves("a run counts for its own place")
def test_a_position_that_was_moved_back_is_followed(project: Project) -> None:
    """A person who seeks raises the lease_epoch; what was read before is read once more.

    Guard: the lease_epoch in the mark of sensing._Place.
    """
    first = done_once(project)
    for partition in (0, 1):
        stream.seek(project.own, SUBSCRIPTION, TOPIC, partition, "earliest")
    read_again(project, first)


@proves("a run counts for its own place")
def test_a_subscription_that_was_made_anew_begins_anew(project: Project) -> None:
    """Its lease_epochs begin anew too.  Guard: the time of its making in the mark."""
    first = done_once(project)
    stream.unsubscribe(project.own, SUBSCRIPTION)
    read_again(project, first)


def test_a_new_history_counts_no_run_of_the_old_one(project: Project) -> None:
    """The same sequences may be other events then."""
    project.publish(4)
    first = project.ask()
    assert project.run(first).success
    reconcile(project.own, "commits were lost")
    read_again(project, first)


@proves("a run counts for its own place")
def test_the_run_of_another_topic_does_not_count(project: Project) -> None:
    """One name of a sensor, first on one topic and then on another, and the cursor is lost.

    Guards: partition_id in the mark, and the topic by which _Source._places chooses.
    """
    first = done_once(project)
    penstock.create_topic(project.own, "shop/another", 2)
    for number in range(4):
        penstock.publish(project.own, "shop/another", b'{"amount": 1}', partition=number % 2)
    sequence(project.url)
    project.sensor = on_events(project.module.new_orders, "shop/another")
    assert project.sensor.name == "new_orders_on_events"
    for cursor in (None, first_cursor(project, first)):
        project.cursor = cursor
        other = project.ask()
        assert other.run_key != first.run_key
        config = other.run_config["ops"]["new_orders"]["config"]
        assert config["topic"] == "shop/another"
        assert [each["last"] for each in config["ranges"]] == [2, 2]
    assert project.positions() == [0, 0, 2, 2]


def first_cursor(project: Project, request: dg.RunRequest) -> str:
    """The cursor of the tick that asked for a run, as if it had been the last one."""
    ranges = [
        [each["partition"], each["first"], each["last"], "a mark of another place"]
        for each in request.run_config["ops"]["new_orders"]["config"]["ranges"]
    ]
    return sensing._Asked(ranges, 1, 0.0).dump()


@proves("a run counts for its own place")
def test_a_reset_during_the_run_is_not_undone_by_it(project: Project) -> None:
    """The partition that nobody has moved goes on.  Guard: sensing._current."""
    project.publish(4)
    first = project.ask()
    stream.seek(project.own, SUBSCRIPTION, TOPIC, 0, "earliest")
    assert project.run(first).success
    again = project.ask()
    assert project.positions() == [0, 2]
    ranges = again.run_config["ops"]["new_orders"]["config"]["ranges"]
    assert ranges == [{"partition": 0, "first": 1, "last": 2}]


def test_the_events_of_a_tick_are_shared_out_and_none_waits_for_ever() -> None:
    def late(partition: int, events: int, seconds: float) -> Lag:
        return Lag("s", TOPIC, partition, 0, events, events, seconds, "", None, 0)

    lags = [late(0, 100, 5.0), late(1, 2, 1.0), late(2, 0, 0.0), late(3, 50, 9.0)]
    assert sensing._share(lags, 42) == [[0, 1, 20], [1, 1, 2], [3, 1, 20]]
    assert sensing._share(lags, 1) == [[3, 1, 1]]
    assert sensing._share(lags, 1_000) == [[0, 1, 100], [1, 1, 2], [3, 1, 50]]


def test_a_daily_asset_gets_the_hours_of_the_archive_in_its_day(project: Project) -> None:
    """Through TimeWindowPartitionMapping, as an input that is read batch by batch."""
    project.publish(6)
    seal(project.own, TOPIC, max_events=2, max_age_seconds=0)
    yesterday = dt.datetime.now(dt.UTC).replace(hour=12) - dt.timedelta(days=1)
    project.own.execute(
        "UPDATE penstock.log_epochs SET sealed_at = %s WHERE log_epoch = 1", (yesterday,)
    )
    done = dg.materialize(
        [project.module.archive, project.module.revenue_of_day],
        selection=[project.module.revenue_of_day],
        partition_key=f"{yesterday:%Y-%m-%d}",
        instance=project.instance,
        resources=project.module.defs.resources,
    )
    (made,) = done.asset_materializations_for_node("revenue_of_day")
    assert made.metadata["revenue"].value == 40  # 2 of 3 orders of each partition


def test_the_keys_are_those_of_the_control_plane(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "policies.yaml").write_text("topics: {shop/order-items: , shop/Orders: }")
    monkeypatch.setenv("PENSTOCK_POLICIES", str(tmp_path / "policies.yaml"))
    for topic in (own := ("shop/order-items", "shop/Orders")):
        penstock.create_topic(project.own, topic, 1)
    (catalogue,) = read()
    for asset in ("sequenced", "archive"):
        for topic in (TOPIC, *own):
            assert topic_key(topic, asset) == catalogue.key(topic, asset)
    with pytest.raises(UsageError, match="no asset 'arcive'"):
        topic_key(TOPIC, "arcive")


def test_what_is_wrong_is_said_before_anything_is_read(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidArgument):
        on_events(project.module.new_orders, TOPIC, max_events=0)
    with pytest.raises(UsageError, match="cannot be written"):
        project.module.defs.resources["events"].handle_output(None, 1)
    monkeypatch.delenv("PENSTOCK_DATABASE_URL")
    with pytest.raises(ConfigurationError, match="PENSTOCK_DATABASE_URL is not set"):
        project.module.defs.resources["penstock"].url()
    events = EventRange(topic=TOPIC, ranges=[SequenceRange(partition=1, first=2, last=3)])
    assert (events.count, events.name) == (2, "1.2-3")


def test_a_database_that_is_down_is_one_line(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", "postgresql://a:s3cret-word@127.0.0.1:1/x")
    said = project.tick().skip_message or ""
    assert "cannot connect to" in said and "s3cret-word" not in said


def test_a_topic_that_is_not_there_yet_is_one_line(project: Project) -> None:
    """Guard: TopicNotFound in the sensor.  Once there is the topic, its events are read."""
    project.sensor = on_events(project.module.new_orders, "shop/later")
    assert 'there is no topic "shop/later"' in (project.tick().skip_message or "")
    penstock.create_topic(project.own, "shop/later", 1)
    penstock.publish(project.own, "shop/later", b"{}")
    sequence(project.url)
    assert project.ask().run_config["ops"]["new_orders"]["config"]["topic"] == "shop/later"


def test_without_dagster_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['dagster'] = None\nimport penstock.dagster"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "penstock[dagster]" in done.stderr
