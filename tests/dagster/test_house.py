"""What Dagster tells people: lag in a sentence, how to begin, plots, policies."""

from __future__ import annotations

import datetime as dt
import threading
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_project.common import hour_name
from ops.seal import copies_of, log_epochs, seal
from penstock import subscriptions
from penstock.subscriptions import policies, stream
from penstock.topics import names
from penstock.upkeep.sequencing import sequence
from tests.dagster.conftest import TOPIC, House
from tests.dagster.test_jobs import metadata_of, verdicts
from tests.kit.proof import proves


def test_the_lag_of_a_consumer_is_told_in_a_sentence(house: House, policy_path: Path) -> None:
    """Within the limit it passes and says so; beyond it, and held by nobody, two checks warn."""
    house.create_topic()
    stream.subscribe(house.connection, "readers", [TOPIC], start="earliest")
    house.publish(10)
    house.done("sequence")
    found = house.done("health").get_asset_check_evaluations()
    (lag,) = [each for each in found if each.check_name == "consumer_lag"]
    assert lag.passed and "10 events wait" in str(lag.metadata["verdict"].value)
    assert "within the limit of 3600 s" in str(lag.metadata["verdict"].value)
    policy_path.write_text(policy_path.read_text().replace("consumer_lag: 1h", "consumer_lag: 0"))
    house.reload()
    house.connection.execute(
        "UPDATE penstock.chunks SET sequenced_at = now() - interval '1 minute'"
    )
    late = verdicts(house.job("health").get_asset_check_evaluations())
    assert not late["orders_sequenced:consumer_lag"]
    assert not late["orders_sequenced:lease_coverage"]


def test_an_empty_database_says_in_the_graph_how_to_begin(
    house: House, environment: pytest.MonkeyPatch
) -> None:
    """An asset that goes with the first topic.  A database that does not answer is not empty."""
    key = dg.AssetKey(["penstock", "begin_here"])
    said = house.defs.resolve_asset_graph().get(key).description or ""
    assert "penstock topic create" in said and "make demo" in said
    house.create_topic()
    house.reload()
    assert key not in house.defs.resolve_asset_graph().get_all_asset_keys()
    environment.setenv("PENSTOCK_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nothing")
    house.reload()
    assert key not in house.defs.resolve_asset_graph().get_all_asset_keys()


def test_what_is_not_there_yet_is_a_note_and_no_drift(house: House) -> None:
    """As the topic of the shipped policy file, in a database that is new."""
    told = metadata_of(house.done("policies"), "penstock/policies")
    assert "penstock topic create shop/orders --create-namespaces" in told["not there yet"]
    found = house.job("health").get_asset_check_evaluations()
    (drifted,) = [each for each in found if each.check_name == "policy_drift"]
    assert drifted.passed
    assert "topic shop/orders" in str(drifted.metadata["not there yet"].value)


def test_health_says_how_to_begin_and_plots_what_it_has_seen(house: House) -> None:
    first = metadata_of(house.done("health"), "penstock/health")
    assert "penstock topic create" in first["report"]
    house.create_topic()
    house.publish(10)
    house.done("sequence")
    again = metadata_of(house.done("health"), "penstock/health")
    assert again["events ever"] == 10 and again["events a second"] > 0
    assert not {"lag", "rate"} & again.keys()  # one rate, and nobody has waited: flat lines
    stream.subscribe(house.connection, "late", [TOPIC], start="earliest")
    third = metadata_of(house.done("health"), "penstock/health")
    assert third["lag"].startswith("![") and "data:image/svg+xml;base64," in third["rate"]


def test_who_set_what_and_what_was_set_by_hand_is_shown(house: House) -> None:
    """The file's own versions, and one that a hand has set and the file does not name."""
    house.create_topic()
    said = metadata_of(house.done("policies"), "penstock/policies")
    by = f"file {house.folder / 'policies.yaml'}"
    assert f"| shop/orders | 0 | 1 |  | 1 | {by} |" in said["retention in force"]
    assert "shop-file" in said["changed"] and said["differs still"].count("\n") == 1
    policies.set_policy(house.connection, "retry", {"max_attempts": 5}, scope="topic", name=TOPIC)
    policies.set_policy(house.connection, "retry", {"max_attempts": 7}, scope="topic", name=TOPIC)
    said = metadata_of(house.done("policies"), "penstock/policies")
    login = house.connection.info.user
    assert "retry" in said["differs still"]
    for version, attempts in ((1, 5), (2, 7)):
        assert (
            f"| retry | {version} | max_attempts {attempts} | hand | {login} |"
            in (said["who set what"])
        )
    found = house.job("health").get_asset_check_evaluations()
    (drifted,) = [each for each in found if each.check_name == "policy_drift"]
    assert not drifted.passed and f"| {login} |" in str(drifted.metadata["set by hand"].value)


@proves("a policy file owns what it has set")
def test_a_database_that_follows_another_file_is_left_alone(
    house: House, policy_path: Path
) -> None:
    """Nothing is changed, sent, sealed or archived; no canary is made; the pages say which file.

    Guards: follows() in relay, canary, archive, seal and their sensors; what _Claim may change.
    """
    house.create_topic()
    text = policy_path.read_text() + "canary: ops/canary\n"
    policy_path.write_text(text.replace("consumer_lag: 1h", "consumer_lag: 1h, end_to_end: 0"))
    house.reload()
    policies.set_policy(house.connection, "retry", {"max_attempts": 2}, origin="file elsewhere")
    stream.subscribe(house.connection, "shop-file", [TOPIC], start="earliest")
    house.publish(4)
    house.done("sequence")
    for job in ("relay", "canary", "seal"):
        house.done(job)
    assert log_epochs(house.connection, TOPIC) == []
    seal(house.connection, TOPIC, max_age_seconds=0)  # by hand
    house.done("archive", partition_key=hour_name(dt.datetime.now(dt.UTC)))
    assert copies_of(house.connection, TOPIC) == []
    house.publish(4)
    house.done("sequence")
    assert not house.sense("seal").run_requests
    said = metadata_of(house.done("policies"), "penstock/policies")
    assert (said["changes"], said["follows another file"]) == (0, "elsewhere")
    found = house.job("health").get_asset_check_evaluations()
    (drifted,) = [each for each in found if each.check_name == "policy_drift"]
    assert (drifted.passed, drifted.metadata["follows another file"].value) == (False, "elsewhere")
    assert not house.sense("backlog").run_requests
    assert {each.lag_events for each in subscriptions.lag(house.connection)} == {4}
    assert [each.address for each in names.list_topics(house.connection)] == [TOPIC]
    assert [each.origin for each in policies.list_policies(house.connection)] == ["file elsewhere"]


def test_the_canary_goes_the_whole_way(house: House, policy_path: Path) -> None:
    """With somebody who sequences it passes; with nobody it says so, and health stays empty."""
    assert "canary" not in {job.name for job in house.defs.resolve_all_job_defs()}
    text = policy_path.read_text() + "canary: ops/canary\n"
    policy_path.write_text(text.replace("limits: {", "limits: {end_to_end: 0, "))
    house.reload()
    alone = house.job("canary")
    (check,) = alone.get_asset_check_evaluations()
    assert not check.passed and "nobody sequenced it" in str(check.metadata["problem"].value)
    assert "There is no topic yet" in metadata_of(house.done("health"), "penstock/health")["report"]

    policy_path.write_text(text.replace("limits: {", "limits: {end_to_end: 60, "))
    done = threading.Event()

    def sequencer() -> None:
        while not done.wait(0.1):
            sequence(house.url)

    thread = threading.Thread(target=sequencer)
    thread.start()
    flown = house.job("canary")
    done.set()
    thread.join()
    (check,) = flown.get_asset_check_evaluations()
    assert check.passed, check.metadata
    assert 0 <= metadata_of(flown, "penstock/canary")["consumed after (s)"] < 60


def test_nothing_is_unsynced_after_a_run_and_after_a_tick(house: House) -> None:
    """Also after a run of `sequence` that found nothing, and has reported the log as it was.

    Guard: the sensor reports `sequenced` together with `log`, health depends on nothing, and
    made_of, which tells what a relay's event without a run was made of.
    """
    from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus

    house.create_topic()
    house.done("policies")
    house.sense("backlog")
    for _number in range(2):
        house.publish(10)
        for name in ("sequence", "relay", "sweep", "health"):
            house.done(name)
        house.sense("backlog")
    house.done("sequence")
    graph = house.defs.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(house.instance, graph, loading_context=context_of(house))
    for key in graph.get_all_asset_keys():
        if graph.get(key).partitions_def is None:
            assert resolver.get_status(key) is not StaleStatus.STALE, key


def context_of(house: House) -> Any:
    """What Dagster loads its records through."""
    from dagster._core.loader import LoadingContextForTest

    return LoadingContextForTest(house.instance)
