"""Definitions load, with the database up and down, and hold what they should."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from tests.dagster.conftest import TOPIC, House

ROOT = Path(__file__).resolve().parents[2]
SLUG = "shop_orders_644f7b8c"

DOWN = "postgresql://somebody:s3cret-word@127.0.0.1:1/nowhere"

ASSETS = {
    f"{SLUG}/log",
    f"{SLUG}/sequenced",
    f"{SLUG}/sealed",
    f"{SLUG}/archive",
    f"{SLUG}/retention",
    "penstock/health",
    "penstock/policies",
    "penstock/sequence",
    "penstock/sweep",
    "relay/shop_file_a6b6e10c",
}
CHECKS = {
    f"{SLUG}/sequenced:no_sequence_gap",
    f"{SLUG}/sequenced:consumer_lag",
    f"{SLUG}/retention:archive_count_and_checksum",
    "penstock/policies:policy_drift",
    "penstock/health:no_errors",
}
JOBS = {
    "sequence", "relay", "sweep", "clean", "backfill", "tidy", "seal", "policies", "health",
    f"archive_{SLUG}",
}  # fmt: skip


def asset_names(defs: dg.Definitions) -> set[str]:
    """Every asset of the definitions."""
    return {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}


def load() -> dg.Definitions:
    """The definitions, checked as Dagster checks them."""
    from dagster_project.definitions import build

    defs = build()
    dg.Definitions.validate_loadable(defs)
    return defs


def test_the_assets_checks_jobs_schedules_and_sensors_are_these(house: House) -> None:
    defs = house.defs
    dg.Definitions.validate_loadable(defs)
    assert asset_names(defs) == ASSETS
    graph = defs.resolve_asset_graph()
    assert {
        f"{key.asset_key.to_user_string()}:{key.name}" for key in graph.asset_check_keys
    } == CHECKS
    assert {job.name for job in defs.resolve_all_job_defs()} - {"__ASSET_JOB"} == JOBS
    repository = defs.get_repository_def()
    assert {each.name for each in repository.sensor_defs} == {
        "backlog",
        "missing_copies",
        "sealed_epochs",
    }
    assert {each.job_name for each in repository.schedule_defs} == {
        "relay", "sweep", "clean", "tidy", "seal", "policies", "health",
    }  # fmt: skip
    for sensor in repository.sensor_defs:
        assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    for schedule in repository.schedule_defs:
        assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING


def test_every_asset_says_what_it_is_and_whose(house: House) -> None:
    graph = house.defs.resolve_asset_graph()
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert node.description, key
        assert node.kinds, key
        assert node.group_name in {"shop/orders", "operations"}, key
        if key.path[0] == SLUG:
            assert node.metadata["penstock/topic"] == TOPIC
            if key.path[1] != "log":
                assert node.owners == ["team:shop"]


def test_topics_of_the_database_are_found(house: House) -> None:
    house.create_topic()
    import penstock

    penstock.create_topic(house.connection, "shop/returns", 1)
    assert len(asset_names(load())) == len(ASSETS) + 3  # log, sequenced, sealed: no policy


def test_the_database_is_down(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment.setenv("PENSTOCK_DATABASE_URL", DOWN)
    environment.setenv("PENSTOCK_TOPICS", "shop/known, shop/orders")
    with caplog.at_level(logging.INFO):
        defs = load()
    assert len(asset_names(defs)) == len(ASSETS) + 3
    (message,) = [each.getMessage() for each in caplog.records if each.name.startswith("penstock")]
    assert "the topics of the database are not known (cannot connect to" in message
    assert "reload the code location" in message
    assert "s3cret-word" not in message


def test_dagster_validates_the_workspace_at_the_root(environment: pytest.MonkeyPatch) -> None:
    """As a person does it, with the database down: loaded, one message, and nothing warns."""
    environment.setenv("PENSTOCK_DATABASE_URL", DOWN)
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Validation successful for code location penstock" in said
    assert said.count("the topics of the database are not known") == 1
    assert "s3cret-word" not in said
    assert "Warning" not in said.replace("SupersessionWarning", "")
