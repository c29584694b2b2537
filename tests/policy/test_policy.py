"""Drift, apply and health on a real database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
from ops.health import health
from ops.policies import file as policy_file, policy
from ops.policies.file import Policies
from ops.policies.policy import NO_TOPIC, Drift
from ops.seal import seal
from penstock import subscriptions
from penstock.database import call
from penstock.doctor import Finding, Severity
from penstock.subscriptions import policies as in_force, stream
from penstock.upkeep.sequencing import sequence

Connection = psycopg.Connection[tuple[Any, ...]]

TEXT = """
targets: {local: archive}
topics:
  shop/orders:
    seal: {max_events: 100}
    archive: [local]
    retention: {minimum_age: 1h}
relays:
  files: {topic: shop/orders, sink: jsonl:out}
limits: {unsequenced: 0, relay_lag: 0, consumer_lag: 0}
"""


@pytest.fixture
def policies(tmp_path: Path) -> Policies:
    return policy_file.parse(TEXT, tmp_path / "policies.yaml")


@pytest.fixture
def orders(connection: Connection) -> str:
    penstock.create_topic(connection, "shop/orders", 2, create_namespaces=True)
    return "shop/orders"


def publish(connection: Connection, topic: str, count: int) -> None:
    """Plain events, one transaction."""
    penstock.publish_batch(
        connection, [penstock.Message(topic, b"x", key=str(n)) for n in range(count)]
    )


def test_a_topic_that_is_not_there_yet_is_named(connection: Connection, policies: Policies) -> None:
    found = policy.drift(connection, policies)
    assert {(each.setting, each.found, each.mendable) for each in found} == {
        ("retention", NO_TOPIC, False),
        ("relay files", NO_TOPIC, False),
    }
    assert policy.apply(connection, policies) == []


def test_apply_removes_the_drift_and_is_idempotent(
    connection: Connection, policies: Policies, orders: str
) -> None:
    wanted = [
        Drift(orders, "retention", "3600 s, 1 copies on local", "none"),
        Drift(orders, "relay files", "files", "none"),
    ]
    assert policy.apply(connection, policies) == wanted
    assert policy.drift(connection, policies) == []
    assert policy.apply(connection, policies) == []
    retention = policy.retention_in_force(connection)[orders]
    assert (retention.version, retention.origin) == (1, "file")
    assert {each.subscription for each in subscriptions.lag(connection)} == {"files"}


def test_what_was_set_by_hand_is_shown_and_only_the_file_s_topics_are_mended(
    connection: Connection, policies: Policies, orders: str
) -> None:
    penstock.create_topic(connection, "shop/other", 1)
    policy.apply(connection, policies)
    for topic in (orders, "shop/other"):
        call(
            connection,
            "set_retention",
            topic=topic,
            minimum_age_seconds=0,
            copies=2,
            origin="hand",
            targets=["b", "a"],
        )
    by_hand = Drift(
        "shop/other", "retention", "none", "0 s, 2 copies on a, b", mendable=False, origin="hand"
    )
    assert policy.drift(connection, policies) == [
        Drift(
            orders, "retention", "3600 s, 1 copies on local", "0 s, 2 copies on a, b", origin="hand"
        ),
        by_hand,
    ]
    assert policy.topic_drift(connection, policies, "shop/other") == [by_hand]
    policy.apply(connection, policies)
    assert policy.drift(connection, policies) == [by_hand]


SETTINGS = """
global: {heartbeat: {target_qps: 5}}
namespaces: {shop: {retry: {max_attempts: 4, exhausted: park_key}}}
topics: {shop/orders: {lease: {max_consumers: 8}}}
relays: {files: {topic: shop/orders, sink: "jsonl:out"}}
subscriptions: {files: {heartbeat: {heartbeat_seconds: 1, lease_seconds: 5}}}
"""


def test_settings_are_applied_as_versions_of_the_file(
    connection: Connection, tmp_path: Path, orders: str
) -> None:
    """Also of the subscription that the same file makes; what leaves the file is taken back."""
    wanted = policy_file.parse(SETTINGS, tmp_path / "policies.yaml")
    assert [each.found for each in policy.drift(connection, wanted)] == [
        "none", "none", "none", "the subscription does not exist yet", "none",
    ]  # fmt: skip
    assert len(policy.apply(connection, wanted)) == 5
    assert (policy.drift(connection, wanted), policy.apply(connection, wanted)) == ([], [])
    found = in_force.subscription_policy(connection, "files")
    assert (found.target_qps, found.max_attempts, found.exhausted) == (5, 4, "park_key")
    assert (found.max_consumers, found.heartbeat_seconds, found.lease_seconds) == (8, 1, 5)
    less = policy_file.parse(SETTINGS.replace("max_attempts: 4, ", ""), tmp_path / "policies.yaml")
    (changed,) = policy.apply(connection, less)
    assert (changed.subject, changed.setting, changed.origin) == ("namespace shop", "retry", "file")
    none = policy_file.parse("", tmp_path / "policies.yaml")
    assert len(policy.apply(connection, none)) == 4
    assert in_force.list_policies(connection) == []
    history = in_force.policy_history(connection, "retry", scope="namespace", name="shop")
    assert [(each.version, each.origin) for each in history] == [
        (1, "file"), (2, "file"), (3, "file"),
    ]  # fmt: skip


def test_settings_of_a_hand_are_marked_and_kept_unless_the_file_names_them(
    connection: Connection, tmp_path: Path, orders: str
) -> None:
    """Guard: the origin. Without it the file would take back what it has never set."""
    wanted = policy_file.parse("namespaces: {shop: {retry: {jitter: 0.5}}}", tmp_path / "p.yaml")
    stream.subscribe(connection, "readers", [orders])
    stream.configure_subscription(connection, "readers", lease_seconds=60)
    in_force.set_policy(connection, "retry", {"max_attempts": 2}, scope="namespace", name="shop")
    over, alone = policy.drift(connection, wanted)
    assert (over.subject, over.mendable, over.origin) == ("namespace shop", True, "hand")
    assert (alone.subject, alone.mendable, alone.origin) == ("subscription readers", False, "hand")
    assert alone.found == "heartbeat_seconds 3, lease_seconds 60, release_seconds 10"
    assert policy.apply(connection, wanted) == [over]
    assert policy.drift(connection, wanted) == [alone]
    assert policy.topic_drift(connection, wanted, orders) == []
    findings = by_subject(health(connection, wanted))
    assert "(set by hand)" in findings["readers"][0].what
    assert findings["readers"][0].command.endswith("under subscriptions.readers")


def by_subject(findings: list[Finding]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for each in findings:
        found.setdefault(each.check, []).append(each)
    return found


def test_a_sound_database_has_no_findings(
    connection: Connection, policies: Policies, orders: str
) -> None:
    policy.apply(connection, policies)
    assert health(connection, policies) == []


def test_each_finding_says_what_mends_it(
    connection: Connection, database_url: str, policies: Policies, orders: str
) -> None:
    stream.subscribe(connection, "readers", [orders])
    publish(connection, orders, 20)
    waiting = by_subject(health(connection, policies))
    assert waiting["sequencer"][0].severity is Severity.ERROR
    assert "python -m consumers" in waiting["sequencer"][0].command
    assert {each.command for each in waiting[orders]} == {
        "dagster job execute -m dagster_project.definitions -j policies"
    }
    policy.apply(connection, policies)
    sequence(database_url)
    seal(connection, orders, max_age_seconds=0)
    found = by_subject(health(connection, policies))
    assert "sequencer" not in found
    assert found["subscription files"][0].command.endswith("-j relay")
    assert "--consumer readers=" in found["subscription readers"][0].command
    assert [each.what for each in found[orders]] == [
        "2 sealed log epochs have fewer than 1 verified copies on local"
    ]
    assert found[orders][0].command == f"penstock backfill {orders}"


def test_a_database_that_is_not_migrated_is_the_first_finding(
    empty_database_url: str, policies: Policies
) -> None:
    with penstock.connect(empty_database_url) as connection:
        (finding,) = health(connection, policies)
    assert finding.severity is Severity.ERROR
    assert finding.command == "penstock migrate"


def test_a_topic_that_is_not_archived(connection: Connection, orders: str, tmp_path: Path) -> None:
    """`archive: none` is applied as such, and shown as such."""
    text = f"topics: {{{orders}: {{archive: none, retention: {{minimum_age: 1h}}}}}}"
    wanted = policy_file.parse(text, tmp_path / "policies.yaml")
    assert policy.apply(connection, wanted) == [
        Drift(orders, "retention", "3600 s, without a copy", "none")
    ]
    assert policy.drift(connection, wanted) == []
    assert policy.retention_in_force(connection)[orders].copies == 0
