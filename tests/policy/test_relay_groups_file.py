"""Relays with several sinks in the policy file, and in a database that follows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.policies import file as policy_file
from ops.policies.policy import apply, drift
from ops.policies.settings import RelayPolicy
from ops.probes import World, probes
from penstock.errors import ConfigurationError
from penstock.subscriptions.relay_groups import relay_groups
from tests.kit.log import Connection, topic

FILE = """
relay_groups:
  everywhere:
    topic: shop/orders
    sinks: {files: jsonl:out, kafka: "${SINK}", hook: jsonl:hook}
    ack_quorum: 2
    max_attempts: 7
"""


def parse(text: str) -> policy_file.Policies:
    """The policies of a file that lies in /srv/penstock."""
    return policy_file.parse(text, Path("/srv/penstock/policies.yaml"))


def test_the_file_names_sinks_and_quorum() -> None:
    """Each sink is a relay as any other."""
    found = parse(FILE)
    group = found.relay_groups["everywhere"]
    assert (group.quorum, group.retain_for) == (2, "all")
    assert found.relays["everywhere.files"] == RelayPolicy(
        "everywhere.files", "shop/orders", "everywhere.files", "jsonl:out", 7, (), "everywhere"
    )
    assert sorted(found.relays) == ["everywhere.files", "everywhere.hook", "everywhere.kafka"]
    assert parse(FILE.replace("ack_quorum: 2", "")).relay_groups["everywhere"].quorum == 3


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("ack_quorum: 2", "ack_quorum: 4", "there are 3 sinks"),
        ("ack_quorum: 2", "ack_quorum: 0", "from 1 to 100"),
        ("ack_quorum: 2", "retain_for: some", "write one of: all, quorum"),
        ("sinks: {files: jsonl:out, kafka: \"${SINK}\", hook: jsonl:hook}", "sinks: {}", "no sink"),
        ("relay_groups:", "relays: {everywhere.hook: {topic: a/b, sink: jsonl:x}}\nrelay_groups:",
         "has the name of a sink"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse(FILE.replace(old, new))
    assert said in f"{refused.value} {refused.value.hint}"


def test_the_database_follows_the_file(connection: Connection, database_url: str) -> None:
    """It shows what differs, and makes it; a sink that the file forgets stays."""
    wanted = parse(FILE)
    assert drift(connection, wanted) == []  # the topic is not there yet
    topic(connection, 1, "shop/orders")

    def told(policies: policy_file.Policies) -> list[tuple[str, str, str]]:
        return [(each.setting, each.wanted, each.found) for each in drift(connection, policies)]

    sinks = "files, hook, kafka; retain_for all"
    assert told(wanted) == [("relay group everywhere", f"2 of {sinks}", "none")]
    apply(connection, wanted)
    assert told(wanted) == []
    less = parse(FILE.replace("ack_quorum: 2", "ack_quorum: 1").replace(", hook: jsonl:hook", ""))
    assert told(less) == [("relay group everywhere", f"1 of {sinks}", f"2 of {sinks}")]
    apply(connection, less)
    assert (told(less), relay_groups(connection)["everywhere"].ack_quorum) == ([], 1)
    world = World(connection, database_url, wanted, lambda _: ([], {}))
    (age,) = [each for each in probes(wanted.limits) if each.name == "backlog_age"]
    assert age.look(world)("everywhere.kafka").passed
