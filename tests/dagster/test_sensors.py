"""Sensors and schedules against real states of the database."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import penstock
from dagster_project import schedules
from dagster_project.common import DATA_VERSION, hour_name
from dagster_project.sensors import hours as hours_sensor
from dagster_project.sensors.sealing import is_ready
from dagster_project.triggers import WORK_TAG, Attempt, dump_cursor
from ops import hours
from ops.backfill.requests import (
    Window,
    claim_backfill,
    fail,
    list_backfills,
    request_backfill,
)
from ops.hours import UnsealedLog
from ops.policies.settings import SealPolicy
from ops.seal import log_epochs
from penstock.archive.markers import adopt_target
from penstock.archive.targets import Target
from penstock.database import call
from penstock.records import LogEpoch
from penstock.subscriptions import stream
from penstock.upkeep.sequencing import sequence
from tests.dagster.conftest import EPOCH_EVENTS, TOPIC, House
from tests.dagster.test_load import DOWN, RELAY, SLUG
from tests.kit.log import part
from tests.kit.proof import proves

SEALED = dg.AssetKey([*SLUG.split("/"), "orders_sealed"])
ARCHIVE = dg.AssetKey([*SLUG.split("/"), "orders_archive"])


def sealed(house: House, epochs: int = 2) -> list[LogEpoch]:
    """The topic with so many log epochs in each of two partitions."""
    house.create_topic()
    house.publish(2 * epochs * EPOCH_EVENTS)
    sequence(house.url)
    house.done("seal")
    return log_epochs(house.connection, TOPIC)


def record(house: House, epoch: LogEpoch, target: str = "local") -> None:
    """Record a copy, as if somebody had made it."""
    copy = {"event_count": epoch.event_count, "checksum": epoch.checksum, "location": "none"}
    call(house.connection, "record_copy", topic=TOPIC, partition=epoch.partition, layout=1,
         log_epoch=epoch.log_epoch, target=target, first_row=0, **copy)  # fmt: skip


def events_of(done: Any) -> list[tuple[str, str, str | None]]:
    """What a sensor reported: kind, asset and partition; without the checks."""
    return [
        (type(each).__name__, each.asset_key.path[-1], each.partition)
        for each in done.asset_events
        if not isinstance(each, dg.AssetCheckEvaluation)
    ]


def test_attempts_pause_longer_and_longer_and_new_work_begins_anew() -> None:
    first = Attempt.next_of(None, "a", 1000.0)
    assert first == Attempt("a", 1, 1060.0)
    assert Attempt.next_of(first.dump(), "a", 1059.0) is None
    second = Attempt.next_of(first.dump(), "a", 1060.0)
    assert second == Attempt("a", 2, 1180.0)
    assert Attempt.next_of(second.dump(), "b", 1061.0) == Attempt("b", 1, 1121.0)
    assert Attempt.next_of(["a", 90, 0.0], "a", 0.0) == Attempt("a", 91, 3600.0)


def test_the_backlog_sensor_steps_in_only_when_nobody_moves_the_log(house: House) -> None:
    quiet = house.sense("backlog")
    assert quiet.run_requests == [] and quiet.skip_message == "no backlog"
    house.create_topic()
    house.publish(10)
    asked = house.sense("backlog")
    assert [each.job_name for each in asked.run_requests or []] == ["sequence"]
    house.asked(asked)
    house.done("policies")
    asked = house.sense("backlog")
    (request,) = asked.run_requests or []
    assert request.job_name == "relay"
    assert [key.to_user_string() for key in request.asset_selection or []] == [RELAY]
    member = stream.join(house.connection, "shop-file", "a daemon")
    assert len(stream.check_in(house.connection, member)) == 2
    assert house.sense("backlog").run_requests == []
    stream.leave(house.connection, member)
    house.asked(house.sense("backlog"))
    done = house.sense("backlog")
    assert done.run_requests == []
    assert ("AssetMaterialization", "shop_file", None) in events_of(done)
    assert sum(1 for file in (house.folder / "relayed").iterdir() for _ in file.open()) == 10


def test_relays_with_long_names_do_not_hold_each_other_up(house: House, policy_path: Path) -> None:
    """Guard: naming.tag. A tag that is cut alone is that of both, and one run is of one relay."""
    long = "x" * 70
    text = policy_path.read_text()
    relays = "".join(
        f'  {long}-{end}: {{topic: {TOPIC}, sink: "jsonl:{end}"}}\n' for end in ("a", "b")
    )
    policy_path.write_text(text.replace("relays:\n", f"relays:\n{relays}"))
    house.reload()
    house.create_topic()
    for end in ("a", "b"):
        stream.subscribe(house.connection, f"{long}-{end}", [TOPIC], start="earliest")
    house.publish(4)
    sequence(house.url)
    asked = [each for each in house.sense("backlog").run_requests or [] if each.asset_selection]
    tags = {each.tags[WORK_TAG] for each in asked if "xxx" in each.tags[WORK_TAG]}
    assert len(tags) == 2 and max(map(len, tags)) <= 63
    under_way = next(iter(tags))
    house.instance.create_run_for_job(
        house.defs.resolve_job_def("relay"), tags={WORK_TAG: under_way},
        status=dg.DagsterRunStatus.STARTED,
    )  # fmt: skip
    asked = [each for each in house.sense("backlog").run_requests or [] if each.asset_selection]
    assert tags & {each.tags[WORK_TAG] for each in asked} == tags - {under_way}


def test_the_backlog_sensor_records_how_far_the_logs_are(house: House) -> None:
    house.create_topic()
    assert [name for _, name, _ in events_of(house.sense("backlog"))] == [
        "orders_log",
        "orders_sequenced",
    ]
    assert house.sense("backlog").asset_events == []
    house.publish(4)
    sequence(house.url)
    log, sequenced, *_checks = house.sense("backlog").asset_events
    assert log.metadata["events in the database"].value == 4
    assert sequenced.metadata["events ever"].value == 4
    assert "events in the database" not in sequenced.metadata
    first = part(house.connection, 0, TOPIC)
    assert log.tags == sequenced.tags == {DATA_VERSION: f"{first}:1.2,{first + 1}:1.2"}


def test_an_hour_is_reported_with_its_log_epochs_and_their_data_version(house: House) -> None:
    epochs = sealed(house)
    (hour,) = house.hours()
    # The run of `seal` has reported it already, so the sensor leaves it out.
    assert events_of(house.sense("sealed")) == [("AssetObservation", "orders_archive", hour)]
    (found,) = house.instance.fetch_materializations(SEALED, limit=9).records
    event = found.asset_materialization
    assert event is not None and event.partition == hour
    assert event.metadata["log epochs"].value == 4
    assert event.metadata["dagster/row_count"].value == 4 * EPOCH_EVENTS
    assert (event.tags or {})[DATA_VERSION] == hours.data_version(epochs)
    assert house.sense("sealed").asset_events == []


@proves("Dagster shows what is")
def test_an_hour_that_somebody_else_has_archived_is_reported_without_a_run(house: House) -> None:
    """The reconciler: 3 of 4 is an observation and leaves the hour missing, 4 of 4 is not.

    Guard: archive_event, which compares what every target holds with what was sealed.
    """
    epochs = sealed(house)
    (hour,) = house.hours()
    house.sense("sealed")
    for epoch in epochs[:3]:
        record(house, epoch)
    (event,) = house.sense("sealed").asset_events
    assert isinstance(event, dg.AssetObservation)
    assert event.metadata["verified"].value == "3 of 4"
    assert event.tags[DATA_VERSION] == hours.data_version(epochs[:3])
    record(house, epochs[3])
    (event,) = house.sense("sealed").asset_events
    assert isinstance(event, dg.AssetMaterialization) and event.partition == hour
    assert (event.tags or {})[DATA_VERSION] == hours.data_version(epochs)
    assert house.instance.get_materialized_partitions(ARCHIVE) == {hour}
    # The first look at a long log ends, whatever Dagster shows; what it shows is left out.
    house.cursors.clear()
    assert house.sense("sealed").asset_events == []


@proves("a look stays bounded")
def test_a_long_log_is_attached_over_bounded_ticks(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    environment.setattr(hours_sensor, "MOST_CHANGES", 10)
    environment.setattr(hours_sensor, "MOST_HOURS", 3)
    many_hours(house, epochs=40, each_hour=2)
    seen: list[str] = []
    for _ in range(12):
        told = events_of(house.sense("sealed"))
        seen += [hour or "" for _, name, hour in told if name == SEALED.path[-1]]
    assert len(seen) == len(set(seen)) == 20


def many_hours(house: House, epochs: int, each_hour: int) -> None:
    """Log epochs of the past, so many in each hour; the sensors only list them."""
    house.create_topic()
    house.connection.execute(
        """
        INSERT INTO penstock.log_epochs (partition_id, log_epoch, first_sequence, last_sequence,
                                         event_count, checksum, sealed_at)
        SELECT %s, n, n, n, 1, md5(n::text),
               date_trunc('hour', now()) - ((%s - n) / %s + 1) * interval '1 hour'
                   + (n %% %s) * interval '1 second'
        FROM generate_series(1, %s) AS n
        """,
        (part(house.connection, 0, TOPIC), epochs, each_hour, each_hour, epochs),
    )
    house.connection.execute("ANALYZE penstock.log_epochs")
    house.reload()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_tick_costs_the_same_at_a_thousand_and_at_a_hundred_thousand_log_epochs(
    house: House,
) -> None:
    spent: dict[int, float] = {}
    for count in (1_000, 100_000):
        house.connection.execute("TRUNCATE penstock.log_epochs")
        if count == 1_000:
            many_hours(house, count, 50)
        else:
            house.connection.execute("SELECT 1")
            house.connection.execute(
                """
                INSERT INTO penstock.log_epochs (partition_id, log_epoch, first_sequence,
                                                 last_sequence, event_count, checksum, sealed_at)
                SELECT %s, n, n, n, 1, md5(n::text), now() - (%s - n) * interval '1 minute'
                FROM generate_series(1, %s) AS n
                """,
                (part(house.connection, 0, TOPIC), count, count),
            )
            house.connection.execute("ANALYZE penstock.log_epochs")
        house.cursors["sealed"] = dump_cursor(
            hours_sensor.VERSION,
            topics=hours_sensor.topics_digest([TOPIC]),
            after=(dt.datetime.now(dt.UTC) - dt.timedelta(minutes=10)).isoformat(),
            seen={},
        )
        ticks = []
        for name in ("sealed", "seal", "lost_copies", "backfills", "backlog"):
            begun = time.perf_counter()
            house.sense(name)
            ticks.append(time.perf_counter() - begun)
        spent[count] = max(ticks)
    assert spent[100_000] < 1, spent


def test_a_cursor_of_another_version_is_not_read(house: House) -> None:
    """Guard: triggers.cursor_of."""
    sealed(house)
    for name in ("sealed", "backlog", "lost_copies"):
        for cursor in ("no JSON", "[]", '{"version": 99, "after": "x", "seen": 1, "asked": 2}'):
            house.cursors[name] = cursor
            house.sense(name)
    assert house.sense("sealed").asset_events == []


def test_a_run_of_seal_is_asked_for_only_when_it_has_something_to_do(house: House) -> None:
    assert house.sense("seal").run_requests == []
    house.create_topic()
    house.publish(10)
    sequence(house.url)
    (request,) = house.sense("seal").run_requests or []
    assert request.run_config["ops"]["seal_log_epochs"]["config"] == {"topics": [TOPIC]}
    house.done("seal", run_config=request.run_config)
    assert house.sense("seal").run_requests == []


def test_size_and_age_decide_whether_a_log_is_sealed() -> None:
    log = UnsealedLog("a/b", events=10, seconds=60.0)
    assert is_ready(log, SealPolicy(max_events=10))
    assert not is_ready(log, SealPolicy(max_events=11))
    assert is_ready(log, SealPolicy(max_events=11, max_age_seconds=60))
    assert not is_ready(log, SealPolicy(max_events=11, max_age_seconds=61))
    assert not is_ready(log, None)


def requested(house: House, count: int) -> list[int]:
    """Requests for copies that nobody works off yet."""
    sealed(house, epochs=1)
    adopt_target(
        house.url, Target("local", str(house.folder / "archive")), even_without_copies=True
    )
    return [
        request_backfill(house.connection, TOPIC, "copy", "local", Window(partition=n % 2)).request
        for n in range(count)
    ]


def test_each_request_gets_a_run_of_its_own_at_most_twenty_in_a_tick(house: House) -> None:
    ids = requested(house, 22)
    runs = house.sense("backfills").run_requests or []
    assert [each.run_key for each in runs] == [f"backfill:{each}:1" for each in ids[:20]]
    assert runs[0].run_config["ops"]["run_request"]["config"] == {"request": ids[0]}
    assert {each.job_name for each in runs} == {"backfill"}


def test_a_request_whose_run_is_gone_waits_again(house: House) -> None:
    """Guard: backfills._why_gone; a runner that is none of Dagster's keeps its request."""
    first, second = requested(house, 2)
    gone = claim_backfill(house.connection, "dagster:no-such-run", request=first)
    other = claim_backfill(house.connection, "a-host:1", request=second)
    assert gone is not None and other is not None
    house.sense("backfills")
    states = {each.request: each for each in list_backfills(house.connection)}
    assert states[first].state == "waiting" and "is not known any more" in states[first].error
    assert states[second].state == "running"
    time.sleep(max(0.0, (states[first].not_before - dt.datetime.now(dt.UTC)).total_seconds()))
    (again,) = house.sense("backfills").run_requests or []
    assert again.run_key == f"backfill:{first}:2"
    assert fail(house.connection, other, "over") == "waiting"


def test_a_lost_copy_is_asked_for_once_and_again_when_it_is_lost_again(house: House) -> None:
    epochs = sealed(house, epochs=1)
    for epoch in epochs:
        record(house, epoch)
    assert "no copy is missing" in (house.sense("lost_copies").skip_message or "")

    def lose() -> None:
        call(house.connection, "forget_copy", topic=TOPIC, partition=0, log_epoch=1,
             target="local", reason="gone")  # fmt: skip

    lose()
    house.sense("lost_copies")
    house.sense("lost_copies")
    (first,) = list_backfills(house.connection)
    assert (first.kind, first.target, first.units) == ("copy", "local", 1)
    call(house.connection, "cancel_backfill", request=first.request)
    house.sense("lost_copies")
    assert len(list_backfills(house.connection)) == 1  # the pause of the first attempt
    record(house, epochs[0])
    house.sense("lost_copies")
    lose()
    house.sense("lost_copies")
    assert len(list_backfills(house.connection)) == 2


def test_a_database_that_is_down_is_one_line_and_no_error(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    house.create_topic()
    environment.setenv("PENSTOCK_DATABASE_URL", DOWN)
    for name in ("backlog", "seal", "sealed", "lost_copies", "backfills"):
        done = house.sense(name)
        assert "cannot connect to" in (done.skip_message or "")
        assert "s3cret-word" not in (done.skip_message or "")
    assert "cannot connect to" in tick(house, "policies_every_five_minutes")


def test_one_failing_topic_does_not_end_the_tick(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    """The others are looked at; a database that is down ends it, see above.

    Guard: others_go_on.
    """
    sealed(house, epochs=1)
    penstock.create_topic(house.connection, "shop/aaa", 1)
    penstock.publish(house.connection, "shop/aaa", b"x")
    sequence(house.url)
    call(house.connection, "seal", topic="shop/aaa", partition=0, max_events=1,
         max_age_seconds=0)  # fmt: skip
    house.reload()
    real = hours.epochs_of_hour

    def epochs_of_hour(connection: Any, topic: str, hour: dt.datetime) -> object:
        if topic == TOPIC:
            raise RuntimeError("this topic's own trouble")
        return real(connection, topic, hour)

    environment.setattr(hours_sensor, "epochs_of_hour", epochs_of_hour)
    (event,) = house.sense("sealed").asset_events
    assert event.asset_key.path[1] == "shop_aaa"


def tick(house: House, name: str) -> str:
    """One evaluation of a schedule: the reason why it skips, or '' when it asks for a run."""
    repository = house.defs.get_repository_def()
    definition = repository.get_schedule_def(name)
    resources = dict(house.defs.resources or {})
    with dg.build_schedule_context(
        instance=house.instance, repository_def=repository, resources=resources
    ) as context:
        done = definition.evaluate_tick(context)
    assert bool(done.run_requests) != bool(done.skip_message)
    return done.skip_message or ""


def test_schedules_ask_for_runs_only_when_there_is_work(house: House) -> None:
    with dg.instance_for_test() as instance:  # a schedule's context takes none in memory
        house.instance = instance
        asked_for_by_schedules(house)
        asked_for_by_the_sweep(house)


def asked_for_by_schedules(house: House) -> None:
    """Each schedule with nothing to do, and with something."""
    assert tick(house, "policies_every_five_minutes") == "the database follows the policy file"
    house.create_topic()
    assert tick(house, "policies_every_five_minutes") == ""
    house.done("policies")
    assert tick(house, "policies_every_five_minutes") == "the database follows the policy file"
    for name in ("sweep_every_five_minutes", "clean_every_hour", "audit_every_hour"):
        assert tick(house, name) == ""


def asked_for_by_the_sweep(house: House) -> None:
    """A run costs seconds of a processor.  Guards: schedules._sweep, triggers.ran_since."""
    name = "sweep_every_five_minutes"
    house.done("sweep")
    stream.subscribe(house.connection, "readers", [TOPIC])
    stream.join(house.connection, "readers", "somebody")
    assert "no consumer is dead" in tick(house, name)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(schedules, "SWEEP_AT_LEAST_EVERY", dt.timedelta(0))
        assert tick(house, name) == ""
    house.connection.execute("UPDATE penstock.consumers SET deadline = now()")
    assert tick(house, name) == ""


def test_the_key_of_an_hour_is_that_of_its_partition(house: House) -> None:
    sealed(house, epochs=1)
    partitions: Any = house.defs.resolve_asset_graph().get(SEALED).partitions_def
    assert house.hours()[0] in partitions.get_partition_keys()
    for minute in (0, 59):
        assert hour_name(dt.datetime(2026, 11, 23, 7, minute, tzinfo=dt.UTC)) == "2026-11-23-07:00"
