"""Relays of queues in the policy file, and in a database that follows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.policies import file as policy_file
from ops.policies.policy import apply, drift
from penstock.errors import ConfigurationError
from penstock.subscriptions import queue, stream
from tests.kit.log import Connection, topic

FILE = """
relays:
  hook: {topic: shop/orders, sink: "sqs://eu-west-1/orders", order: key, rules: {rate: 5}}
"""


def parse(text: str) -> policy_file.Policies:
    """The policies of a file that lies in /srv/penstock."""
    return policy_file.parse(text, Path("/srv/penstock/policies.yaml"))


def test_the_order_goes_with_the_address() -> None:
    """So command, daemon, Dagster and Spark make the same relay of it."""
    found = parse(FILE)
    assert found.relays["hook"].order == "key"
    assert found.sink_address(found.relays["hook"]).endswith("#rate=5&order=key")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("order: key", "order: all", "write one of: none, key"),
        ('orders", order: key', 'orders#order=key"', "write order: key beside the sink"),
        ("rate: 5", "order: key", "order"),
    ],
)
def test_what_cannot_be_is_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse(FILE.replace(old, new))
    assert said in f"{refused.value} {refused.value.hint}"


def test_the_database_follows_the_file(connection: Connection) -> None:
    """It gets a queue; a stream of that name stays what it is, and is shown."""
    wanted = parse(FILE)
    topic(connection, 1, "shop/orders")
    (missing,) = drift(connection, wanted)
    assert (missing.setting, missing.wanted, missing.found) == ("relay hook", "hook", "none")
    apply(connection, wanted)
    assert drift(connection, wanted) == []
    assert queue.describe(connection, "hook").order == "none"  # until its relay begins
    other = parse(FILE.replace("hook:", "other:"))
    stream.subscribe(connection, "other", ["shop/orders"])
    (differs,) = drift(connection, other)
    assert (differs.found, differs.mendable) == ("a stream", False)
