"""A relay with several sinks in Dagster: an asset for each sink."""

from __future__ import annotations

from pathlib import Path

from penstock.subscriptions.relay_groups import relay_group_lag, relay_groups
from tests.dagster.conftest import TOPIC, House


def test_each_sink_is_an_asset_and_the_first_run_makes_the_relay(
    house: House, policy_path: Path
) -> None:
    """Guard: relays.ensure_subscribed. Alone, the sinks would be no relay with a quorum."""
    sinks = "{one: jsonl:one, two: jsonl:two}"
    policy_path.write_text(
        f"{policy_path.read_text()}relay_groups:\n"
        f"  both: {{topic: {TOPIC}, sinks: {sinks}, ack_quorum: 1}}\n"
    )
    house.create_topic()
    house.publish(4)
    house.done("sequence")
    done = house.done("relay")
    made = str([each.asset_key for each in done.get_asset_materialization_events()])
    assert "both_one" in made
    assert "both_two" in made
    group = relay_groups(house.connection)["both"]
    assert (group.ack_quorum, sorted(group.sinks)) == (1, ["one", "two"])
    assert sum(each.position for each in relay_group_lag(house.connection, "both")) == 4
    for folder in ("one", "two"):
        files = (policy_path.parent / folder).glob("*.jsonl")
        assert sum(len(each.read_bytes().splitlines()) for each in files) == 4
