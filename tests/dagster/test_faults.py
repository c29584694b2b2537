"""Topics that are renamed or made anew, and tables that nobody can read, stop nothing else."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import dagster as dg
import pytest

import penstock
from dagster_project import jobs
from dagster_project.common import hour_name
from dagster_project.sensors import hours, lost
from dagster_project.triggers import OURS, is_running
from ops.archive.auditing import Share
from ops.backfill.requests import list_backfills
from ops.seal import copies_of, forget_copy, log_epochs, seal
from penstock.archive.targets import Target
from penstock.database import call
from penstock.topics import names
from penstock.upkeep.sequencing import sequence
from tests.archive.logs import Log, bring, flip, only_file
from tests.dagster.conftest import EPOCH_EVENTS, TOPIC, House, failures
from tests.dagster.test_automation import at
from tests.dagster.test_jobs import metadata_of, verdicts
from tests.dagster.test_load import DOWN, RELAY
from tests.dagster.test_sensors import ARCHIVE, SEALED, record, sealed
from tests.kit.proof import proves


def test_a_topic_that_was_made_anew_is_looked_at_anew(house: House) -> None:
    """Its asset has the same name, and its history begins at 1 again.

    Guard: probes._known_of, which goes by the id of the partition.
    """
    for _ in range(2):
        house.create_topic()
        house.publish(8)
        found = house.job("sequence").get_asset_check_evaluations()
        (check,) = [each for each in found if each.check_name == "no_sequence_gap"]
        assert check.metadata["events looked at"].value == 8
        penstock.delete_topic(house.connection, TOPIC)


def test_a_relay_goes_on_when_its_topic_gets_another_name(house: House) -> None:
    """As the daemon's does: it goes by the subscription.  No run is asked for that does nothing.

    Guards: is_subscribed in a run of the relay, in World.is_there, without which nobody looks at
    its backlog, and at a load, without which the relay is not there.
    """
    house.create_topic()
    house.publish(4)
    for name in ("policies", "sequence", "relay"):
        house.done(name)
    names.rename_topic(house.connection, TOPIC, "purchases")
    publish_to(house, "shop/purchases", 6)
    sequence(house.url)
    late = verdicts(house.job("health").get_asset_check_evaluations())
    assert late["shop_file:backlog_age"] is False
    (done,) = house.asked(house.sense("backlog"))
    assert metadata_of(done, RELAY)["events"] == 6
    again = house.sense("backlog")
    assert again.run_requests == []
    house.reload()
    publish_to(house, "shop/purchases", 2)
    sequence(house.url)
    (done,) = house.asked(house.sense("backlog"))
    assert metadata_of(done, RELAY)["events"] == 2
    mended = verdicts(house.job("health").get_asset_check_evaluations())
    assert mended["shop_file:backlog_age"] is True


def publish_to(house: House, topic: str, count: int) -> None:
    """That many events of another topic."""
    penstock.publish_batch(house.connection, [penstock.Message(topic, b"x")] * count)


@pytest.mark.parametrize("job", ["audit", "tidy"])
def test_a_table_that_cannot_be_read_stops_no_other_topic(
    house: House, policy_path: Path, job: str
) -> None:
    """The error is one of Delta's own, and the run says it in a line, with its topic.

    Guard: Failures.isolated, which takes every error.
    """
    other = "shop/returns"
    policy = f"  {other}:\n    archive: [local]\nrelays:"
    policy_path.write_text(policy_path.read_text().replace("relays:", policy))
    house.create_topic()
    penstock.create_topic(house.connection, other)
    house.reload()
    house.publish(2 * EPOCH_EVENTS)
    publish_to(house, other, EPOCH_EVENTS)
    house.done("sequence")
    target = Target("local", str(house.folder / "archive"))
    for topic in (TOPIC, other):
        seal(house.connection, topic, max_age_seconds=0)
        log = Log(house.connection, house.url, topic)
        bring(log, target, log_epochs(house.connection, topic))
    for commit in (house.folder / "archive").glob("shop-orders-*/_delta_log/*.json"):
        commit.write_text("no JSON")
    for file in (house.folder / "archive").glob("shop-returns-*/*/*.parquet"):
        file.unlink()
    done = house.job(job)
    said = failures(done)
    assert not done.success and f"{TOPIC} on local: DeltaError: " in said
    assert len(said.splitlines()) == 1
    if job == "audit":
        states = {each.state for each in copies_of(house.connection, other)}
        assert states == {"missing"}
    else:
        assert other in log_of(house, done.run_id)


@proves("D10 over damage")
def test_the_audit_reads_this_hours_share_of_the_copies_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte is changed, the size is not. Guard: the job reads copies, not only their sizes."""
    house.create_topic()
    house.publish(2 * EPOCH_EVENTS)
    house.done("sequence")
    seal(house.connection, TOPIC, max_age_seconds=0)
    log = Log(house.connection, house.url, TOPIC)
    target = Target("local", str(house.folder / "archive"))
    bring(log, target, log_epochs(house.connection, TOPIC))
    flip(only_file(target, log, (0, 1)))
    turn = Share.of_hour(jobs.AUDIT_DAYS)
    monkeypatch.setattr(Share, "of_hour", lambda days: Share(days, turn.parts))
    monkeypatch.setattr(Share, "has", lambda share, epoch: share.part != jobs.AUDIT_DAYS)
    house.done("audit")
    assert set(house.copies().values()) == {"verified"}  # nobody's turn
    monkeypatch.setattr(Share, "has", lambda share, epoch: share.part == jobs.AUDIT_DAYS)
    house.done("audit")
    assert sorted(house.copies().values()) == ["missing", "verified"]


@pytest.mark.parametrize("targets", [("left", "local"), ("local", "left")])
def test_copies_that_nobody_wants_hide_no_other(
    house: House, environment: pytest.MonkeyPatch, targets: tuple[str, str]
) -> None:
    """A target that has left the policy keeps its losses; a list of them is bounded.

    Guard: the look at each topic in lost._lost; a topic without a policy is passed over.
    """
    epoch, _ = sealed(house, epochs=1)
    penstock.create_topic(house.connection, "shop/returns")
    environment.setattr(lost, "MOST_COPIES", 1)
    for target in targets:
        record(house, epoch, target)
        forget_copy(house.connection, TOPIC, (0, 1), target, "gone")
    house.sense("lost_copies")
    (found,) = list_backfills(house.connection)
    assert (found.target, found.units) == ("local", 1)
    assert (found.from_time, found.to_time) == (
        epoch.sealed_at,
        (epoch.sealed_at or dt.datetime.max) + dt.timedelta(microseconds=1),
    )
    # What was told by the one list is told by the other in the same words.
    call(house.connection, "cancel_backfill", request=found.request)
    environment.setattr(lost, "MOST_COPIES", 1_000)
    house.sense("lost_copies")
    assert len(list_backfills(house.connection)) == 1


def test_runs_of_another_code_location_are_not_ours(house: House) -> None:
    """A project beside ours may have jobs of the same names: one hangs, another one fails.

    Guard: triggers.OURS.
    """
    house.create_topic()
    house.done("policies")
    house.publish(2 * EPOCH_EVENTS)
    for name in ("sequence", "seal", "sweep"):
        for status in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED):
            house.instance.add_run(dg.DagsterRun(job_name=name, status=status))
    house.asked(house.sense("backlog"))
    assert [each.job_name for each in house.sense("seal").run_requests or []] == ["seal"]
    done = house.done("seal").dagster_run
    assert OURS.items() <= done.tags.items()
    assert not is_running(house.instance, job="sequence")
    house.instance.add_run(
        dg.DagsterRun(job_name="sequence", tags=OURS, status=dg.DagsterRunStatus.STARTED)
    )
    assert is_running(house.instance, job="sequence")


def test_a_run_whose_process_is_gone_is_named_and_ends_soon(house: House) -> None:
    """Dagster's launcher of processes takes it for running, and nobody asks for another one.

    Guards: triggers.SHORT, without which that lasts two hours; and what `backlog` says, which was
    that there is no backlog.
    """
    house.create_topic()
    house.publish(1)
    limits = {
        name: house.defs.resolve_job_def(name).tags.get("dagster/max_runtime")
        for name in ("sequence", "seal", "sweep", "policies", "relay", "health", "archive", "clean")
    }
    assert limits == {**dict.fromkeys(limits, "1800"), "archive": None, "clean": None}
    house.instance.add_run(
        dg.DagsterRun(job_name="sequence", tags=OURS, status=dg.DagsterRunStatus.STARTED)
    )
    assert house.sense("backlog").skip_message == "a run of sequence is under way"


def log_of(house: House, run: str) -> str:
    """What a run has said."""
    return "\n".join(each.user_message for each in house.instance.all_logs(run))


@proves("one policy holds for a database")
def test_one_database_under_two_names_loses_nothing(house: House, policy_path: Path) -> None:
    """The file keeps its events as the environment's database, and lets them go as another one.

    Guard: require_own in DatabaseResource.policies, and the environment's address in it.
    """
    main = "databases: {main: {url: '${PENSTOCK_DATABASE_URL}', topics: {%s: %s}}}"
    freely = "{archive: none, retention: {minimum_age: 0s}}"
    house.create_topic()
    house.publish(4 * EPOCH_EVENTS)
    sequence(house.url)
    house.done("seal")
    policy_path.write_text(f"{policy_path.read_text()}\n{main % (TOPIC, freely)}\n")
    house.reload()
    for job in ("policies", "clean", "main__policies", "main__clean"):
        done = house.job(job)
        assert not done.success and "lead to the same database" in failures(done)
    assert house.low_sequences() == [1, 1]


def seal_outside(house: House) -> None:
    """Log epochs that no run of Dagster has made."""
    house.publish(2 * EPOCH_EVENTS)
    sequence(house.url)
    seal(house.connection, TOPIC, max_events=EPOCH_EVENTS)


@proves("every sealed hour is told")
def test_a_seal_that_was_committed_late_is_told_by_the_second_look(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    """A transaction was open for ten minutes, or the clock was behind after a failover.

    Guard: follow_late of the sensor `sealed`; without it nobody ever archives the hour.
    """
    environment.setattr(hours, "LATE", dt.timedelta(minutes=20))
    penstock.create_topic(house.connection, "shop/other", create_namespaces=True)
    publish_to(house, "shop/other", 1)
    sequence(house.url)
    house.create_topic()
    seal(house.connection, "shop/other", max_events=1)
    assert house.sense("sealed").asset_events
    seal_outside(house)
    house.connection.execute(
        "UPDATE penstock.log_epochs SET sealed_at = sealed_at - interval '10 min'"
        " WHERE event_count = %s",
        (EPOCH_EVENTS,),
    )
    sealed_at = log_epochs(house.connection, TOPIC)[0].sealed_at
    assert sealed_at is not None
    told = [house.sense("sealed").asset_events for _ in range(2)]
    assert told == [[], []]
    environment.setattr(hours, "LATE", dt.timedelta(minutes=5))
    (found,) = [each for each in house.sense("sealed").asset_events if each.asset_key == SEALED]
    assert found.partition == hour_name(sealed_at)
    assert house.sense("sealed").asset_events == []


@proves("every sealed hour is told")
def test_dagster_that_loads_while_the_database_is_away_archives_what_is_older(
    house: House, environment: pytest.MonkeyPatch, database_url: str
) -> None:
    """The first hour is not known then.

    Guard: EARLIEST for a database that does not answer; with the day of the load Dagster has no
    partition for the hours before it, and says nothing of them.
    """
    house.create_topic()
    seal_outside(house)
    house.connection.execute(
        "UPDATE penstock.log_epochs SET sealed_at = sealed_at - interval '1 day'"
    )
    environment.setenv("PENSTOCK_DATABASE_URL", DOWN)
    house.reload()
    environment.setenv("PENSTOCK_DATABASE_URL", database_url)
    house.sense("sealed")
    house.conditions(at(1))
    assert house.due(ARCHIVE, at(5)) == set(house.hours())
    assert "Reload the code location" in str(house.sense("backlog").skip_message)
    described = house.defs.resolve_asset_graph().get(ARCHIVE).description
    assert "did not answer" in str(described) and "topic create" not in str(described)
    house.reload()
    assert "did not answer" not in str(house.defs.resolve_asset_graph().get(ARCHIVE).description)


def test_a_target_that_cannot_be_used_fails_what_looks_at_it(
    house: House, policy_path: Path
) -> None:
    """Guards: what `usable` leaves out, in the probes `readable` and `schema_drift`."""
    policy_path.write_text(
        policy_path.read_text().replace("local: archive", "local: '${NO_PLACE}'")
    )
    house.create_topic()
    house.reload()
    found = verdicts(house.job("inspect").get_asset_check_evaluations())
    assert found == {"orders_archive:readable": False, "orders_archive:schema_drift": False}


def test_a_relay_without_a_subscription_is_not_said_to_have_sent_all(house: House) -> None:
    """Guard: NO_SUBSCRIPTION."""
    house.create_topic()
    house.publish(4)
    sequence(house.url)
    checks = house.job("health").get_asset_check_evaluations()
    (found,) = [each for each in checks if each.check_name == "backlog_age"]
    assert "no subscription" in str(found.metadata["note"].value)
