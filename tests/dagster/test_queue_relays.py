"""The relay of a queue in Dagster: an asset that says what has become of the events."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.policies import file as policy_file
from ops.policies.policy import drift
from ops.probes import World, probes
from penstock.subscriptions import queue, stream
from tests.dagster.conftest import TOPIC, House
from tests.kit.proof import proves
from tests.relay.receivers import Call, Says, receiving


@proves("a queue's relay loses and hides nothing")
def test_a_run_sends_what_is_due_and_tells_the_four_states(
    house: House, policy_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for its next attempt fails no run, and asks for none.

    A sink that is away does fail it.
    """
    with receiving() as receiver:
        for name, value in receiver.environ().items():
            monkeypatch.setenv(name, value)
        relay = f'{{topic: {TOPIC}, sink: "{receiver.address}", order: key}}'
        policy_path.write_text(
            policy_path.read_text().replace("relays:\n", f"relays:\n  hook: {relay}\n", 1)
        )
        bad: list[str] = []

        def answer(call: Call) -> Says:
            bad[:] = bad or [call.headers["webhook-id"]]
            later = {"Retry-After": "300"}  # however slow the machine is
            return Says(500, later) if {call.headers["webhook-id"], "all"} & {*bad} else Says()

        receiver.answer = answer
        house.create_topic()
        house.publish(4)
        house.done("sequence")
        key = next(each for each in house.defs.resolve_all_asset_keys() if "hook" in each.path[-1])
        (made,) = house.done("relay", asset_selection=[key]).get_asset_materialization_events()
        found = {
            name: value.value
            for name, value in made.step_materialization_data.materialization.metadata.items()
        }
        assert (found["events"], found["failures"], found["drained"]) == (3, 1, False)
        states = [
            [cell.strip() for cell in line.split("|")[1:3]]
            for line in str(found["states"]).splitlines()[2:]
        ]
        assert states == [
            ["pending", "1"],
            ["in flight", "0"],
            ["sent by this run", "3"],
            ["failed", "0"],
        ]
        asked = house.sense("backlog").run_requests or []
        assert [each for each in asked if key in (each.asset_selection or ())] == []
        policies = policy_file.load()
        world = World(house.connection, house.url, policies, lambda _: ([], {}))
        (age,) = [each for each in probes(policies.limits) if each.name == "backlog_age"]
        assert age.look(world)("hook").passed
        bad[:] = ["all"]
        house.publish(2)  # fewer than open its breaker
        house.done("sequence")
        assert not house.job("relay", asset_selection=[key]).success
        assert queue.statistics(house.connection, "hook").dead == 0


def test_a_relay_that_the_database_has_as_a_stream_stops_no_other(
    house: House, policy_path: Path
) -> None:
    """The file says `order`, and the database has a stream: that is drift.

    Guard: queue_names in `backlog` and in the probe. By the file, both would end with WrongMode.
    """
    relay = f'{{topic: {TOPIC}, sink: "webhook:https://hook.example/", order: key}}'
    policy_path.write_text(
        policy_path.read_text().replace("relays:\n", f"relays:\n  hook: {relay}\n", 1)
    )
    house.create_topic()
    for name in ("hook", "shop-file"):
        stream.subscribe(house.connection, name, topics=[TOPIC])
    house.publish(4)
    house.done("sequence")
    asked = [
        key
        for each in house.sense("backlog").run_requests or []
        for key in each.asset_selection or ()
    ]
    assert sorted(key.path[-1] for key in asked) == ["hook", "shop_file"]
    policies = policy_file.load()
    world = World(house.connection, house.url, policies, lambda _: ([], {}))
    (age,) = [each for each in probes(policies.limits) if each.name == "backlog_age"]
    assert not age.look(world)("hook").passed
    (found,) = [each for each in drift(house.connection, policies) if each.setting == "relay hook"]
    assert found.found == "a stream"
