"""A real daemon beside Dagster: the assets observe what it does, and take no work from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import log, subscriptions
from tests.consumers.process import PENSTOCK, Daemon, until
from tests.dagster.conftest import House
from tests.dagster.test_sensors import events_of
from tests.kit.proof import proves

ROUNDS, EVENTS = 3, 200
#: Longer than a daemon ever lets an event wait.
PATIENT = "unsequenced: 30s, relay_lag: 30s"


@pytest.fixture
def daemon(house: House, policy_path: Path, tmp_path: Path) -> Iterator[Daemon]:
    """``penstock daemon`` with the relay of the policy file, after the policies were applied."""
    policy_path.write_text(policy_path.read_text().replace("unsequenced: 0, relay_lag: 0", PATIENT))
    house.create_topic()
    house.reload()
    house.done("policies")
    relay = f"shop-file=jsonl:{house.folder / 'relayed'}"
    arguments = ("daemon", "--roles", "sequencer,sweep,relay", "--relay", relay)
    started = Daemon(house.url, tmp_path / "daemon", arguments, program=PENSTOCK)
    try:
        yield started.wait_started()
    finally:
        started.kill()


def relayed(house: House) -> list[tuple[int, int]]:
    """Partition and sequence of each line in the sink."""
    lines = [json.loads(line) for file in (house.folder / "relayed").iterdir()
             for line in file.read_text().splitlines()]  # fmt: skip
    return sorted((int(each["penstockpartition"]), int(each["sequence"])) for each in lines)


def is_drained(house: House, events: int) -> bool:
    """Whether so many events were sequenced and sent."""
    sent = sum(each.position for each in subscriptions.lag(house.connection, "shop-file"))
    return sent == events


@proves("a daemon's work stays its own")
def test_beside_a_daemon_the_assets_observe_and_take_no_work(house: House, daemon: Daemon) -> None:
    """No tick asks for a run while the daemon works; all that it has done is shown without one.

    Guard: the backlog sensor asks only when events wait for longer than a limit and nobody holds
    them.  It does once the daemon is dead.
    """
    runs = len(house.instance.get_runs())
    shown: list[tuple[str, str, str | None]] = []
    for number in range(1, ROUNDS + 1):
        house.publish(EVENTS)
        for is_over in (False, True):
            if is_over:
                until(lambda: is_drained(house, number * EVENTS), "the daemon to send all")  # noqa: B023
            done = house.sense("backlog")
            assert done.run_requests == []
            shown += events_of(done)
    half = ROUNDS * EVENTS // 2
    assert relayed(house) == [(part, n) for part in (0, 1) for n in range(1, half + 1)]
    for name, kind in (("orders_log", "Observation"), ("orders_sequenced", "Materialization"),
                       ("shop_file", "Materialization")):  # fmt: skip
        assert shown.count((f"Asset{kind}", name, None)) >= ROUNDS, shown
    assert len(house.instance.get_runs()) == runs
    # What a daemon sequences makes no run, so the check of its work is made by the job health.
    made = {each.check_name for each in house.done("health").get_asset_check_evaluations()}
    assert "no_sequence_gap" in made

    daemon.kill()
    house.publish(EVENTS)
    house.connection.execute(
        "UPDATE penstock.events SET created_at = created_at - interval '1 minute'"
    )
    assert log.status(house.connection).unsequenced_age_seconds > 30
    asked = house.sense("backlog").run_requests or []
    assert [each.job_name for each in asked] == ["sequence"]
