"""Drift, apply and health on a real database."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
from ops import health as health_module
from ops.health import health
from ops.policies import file as policy_file, policy
from ops.policies.file import Policies
from ops.policies.policy import Awaited, PolicyDrift
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
    """It is no drift: nobody has to come.  What creates it is said."""
    assert policy.drift(connection, policies) == []
    assert policy.awaited(connection, policies) == [
        Awaited("topic", "shop/orders", "penstock topic create shop/orders --create-namespaces")
    ]
    assert policy.apply(connection, policies) == []
    assert health(connection, policies) == []


def test_apply_removes_the_drift_and_is_idempotent(
    connection: Connection, policies: Policies, orders: str
) -> None:
    wanted = [
        PolicyDrift(orders, "retention", "3600 s, 1 copies on local", "none"),
        PolicyDrift(orders, "relay files", "files", "none"),
    ]
    assert policy.apply(connection, policies) == wanted
    assert policy.drift(connection, policies) == []
    assert policy.apply(connection, policies) == []
    retention = policy.retention_in_force(connection)[orders]
    assert (retention.version, retention.origin) == (1, policies.origin)
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
            max_bytes=None,
        )
    by_hand = PolicyDrift(
        "shop/other", "retention", "none", "0 s, 2 copies on a, b", mendable=False, origin="hand"
    )
    assert policy.drift(connection, policies) == [
        PolicyDrift(
            orders, "retention", "3600 s, 1 copies on local", "0 s, 2 copies on a, b", origin="hand"
        ),
        by_hand,
    ]
    assert policy.topic_drift(connection, policies, "shop/other") == [by_hand]
    policy.apply(connection, policies)
    assert policy.drift(connection, policies) == [by_hand]


def test_a_retention_that_leaves_the_file_is_taken_back(
    connection: Connection, database_url: str, tmp_path: Path, policies: Policies, orders: str
) -> None:
    """Nothing goes by it any more, also where it went without a copy.  One of a hand stays.

    Guard: _TAKEN_BACK; without it the old retention goes on, and is drift for ever.
    """
    nothing = policy_file.parse("", tmp_path / "policies.yaml")
    without = policy_file.parse(
        f"topics: {{{orders}: {{archive: none, retention: {{minimum_age: 0s}}}}}}",
        tmp_path / "policies.yaml",
    )
    for wanted in (policies, without):
        policy.apply(connection, wanted)
        assert policy.drift(connection, wanted) == []
        (gone,) = policy.drift(connection, nothing)
        assert (gone.setting, gone.wanted, gone.mendable, gone.origin) == (
            "retention", "none", True, nothing.origin,
        )  # fmt: skip
        assert policy.apply(connection, nothing) == [gone]
        assert (policy.drift(connection, nothing), policy.retention_in_force(connection)) == (
            [],
            {},
        )
        assert policy.apply(connection, nothing) == []
    publish(connection, orders, 20)
    sequence(database_url)
    seal(connection, orders, max_age_seconds=0)
    run = call(connection, "begin_clean", topic=orders)[0][0]
    reasons = {reason for *_, reason in call(connection, "clean", topic=orders, run=run)}
    assert reasons == {"the retention policy names no archive target"}


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
    assert [each.found for each in policy.drift(connection, wanted)] == ["none"] * 4
    assert policy.awaited(connection, wanted) == []
    assert len(policy.apply(connection, wanted)) == 5
    assert (policy.drift(connection, wanted), policy.apply(connection, wanted)) == ([], [])
    found = in_force.subscription_policy(connection, "files")
    assert (found.target_qps, found.max_attempts, found.exhausted) == (5, 4, "park_key")
    assert (found.max_consumers, found.heartbeat_seconds, found.lease_seconds) == (8, 1, 5)
    less = policy_file.parse(SETTINGS.replace("max_attempts: 4, ", ""), tmp_path / "policies.yaml")
    (changed,) = policy.apply(connection, less)
    assert (changed.subject, changed.setting) == ("namespace shop", "retry")
    assert changed.origin == wanted.origin == f"file {tmp_path}/policies.yaml"
    none = policy_file.parse("", tmp_path / "policies.yaml")
    assert len(policy.apply(connection, none)) == 4
    assert in_force.list_policies(connection) == []
    history = in_force.policy_history(connection, "retry", scope="namespace", name="shop")
    assert [(each.version, each.origin) for each in history] == [
        (1, wanted.origin), (2, wanted.origin), (3, wanted.origin),
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


def run(command: str, url: str, folder: Path, **variables: str) -> str:
    """What a person gets who copies the command into a shell; 0 or 1, and never an error."""
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PENSTOCK_DATABASE_URL": url,
            "PENSTOCK_POLICIES": str(folder / "policies.yaml"),
            **variables,
        },
    )  # fmt: skip
    assert done.returncode in {0, 1}, (command, done.stderr)
    return done.stdout + done.stderr


def test_each_finding_says_what_mends_it(
    connection: Connection, database_url: str, tmp_path: Path, policies: Policies
) -> None:
    """Every command is run as it is printed, and the finding is gone; or it shows what to look at.

    Guard: the commands themselves; one that does not exist, or needs an option more, fails here.
    """
    (tmp_path / "policies.yaml").write_text(TEXT, "utf-8")
    (there,) = policy.awaited(connection, policies)
    run(there.create, database_url, tmp_path)
    orders = there.name
    stream.subscribe(connection, "readers", [orders])
    publish(connection, orders, 20)
    waiting = by_subject(health(connection, policies))
    assert waiting["sequencer"][0].severity is Severity.ERROR
    commands = {each.command for each in waiting[orders]}
    assert commands == {"penstock policy apply"}
    for command in {*commands, waiting["sequencer"][0].command}:
        run(command, database_url, tmp_path)
    seal(connection, orders, max_age_seconds=0)
    found = by_subject(health(connection, policies))
    assert "sequencer" not in found
    assert [each.what for each in found[orders]] == [
        "1 sealed log epochs have fewer than 1 verified copies on local"
    ]
    assert found[orders][0].command == f"penstock backfill {orders}"
    readers, files = found["subscription readers"][0], found["subscription files"][0]
    assert "partition" in run(readers.command, database_url, tmp_path)
    run(files.command, database_url, tmp_path)
    assert (tmp_path / "out").is_dir()
    assert by_subject(health(connection, policies)).keys() == {"subscription readers", orders}


def test_the_commands_of_other_findings_run_too(
    connection: Connection, database_url: str, tmp_path: Path, orders: str
) -> None:
    """A hand's policy, a transaction that stays open, dead letters, a log behind its copies."""
    (tmp_path / "policies.yaml").write_text("", "utf-8")
    nothing = policy_file.parse("", tmp_path / "policies.yaml")
    in_force.set_policy(connection, "retry", {"max_attempts": 2}, scope="topic", name=orders)
    (drifted,) = health(connection, nothing)
    assert "under topics.shop/orders" in drifted.command
    assert "max_attempts" in run(drifted.command, database_url, tmp_path)
    stream.subscribe(connection, "readers", [orders])
    for command in (
        "penstock doctor  # names it, and what ends it",
        "penstock dead-letter list readers",
        "penstock restore reconcile REASON --yes",
    ):
        assert command.partition("  #")[0] in Path(health_module.__file__).read_text().replace(
            '"penstock", "dead-letter", "list", each.subscription',
            "penstock dead-letter list readers",
        )
        run(command, database_url, tmp_path)


def test_a_name_is_no_command_in_a_command(
    connection: Connection, database_url: str, tmp_path: Path
) -> None:
    """Whoever may create topics and subscriptions must not write what an operator's shell runs.

    Guard: shell() in ops.health and ops.probes, shlex.quote in policy.awaited.
    """
    topic, subscription = "shop/a b$(touch hacked)", "c d;touch hacked;`touch hacked`"
    text = "targets: {local: archive}\nlimits: {consumer_lag: 0, unsequenced: 1h}\n"
    text += f"topics: {{'{topic}': {{archive: [local], retention: {{minimum_age: 1h}}}}}}\n"
    wanted = policy_file.parse(text, tmp_path / "policies.yaml")
    (there,) = policy.awaited(connection, wanted)
    assert topic in words(there.create, tmp_path)
    penstock.create_topic(connection, topic, create_namespaces=True)
    stream.subscribe(connection, subscription, [topic])
    publish(connection, topic, 3)
    sequence(database_url)
    seal(connection, topic, max_age_seconds=0)
    found = by_subject(health(connection, wanted))
    for each in found[topic]:
        assert each.command == "penstock policy apply" or topic in words(each.command, tmp_path)
    (late,) = found[f"subscription {subscription}"]
    assert subscription in words(late.command, tmp_path)
    assert [*tmp_path.iterdir()] == []


def words(command: str, folder: Path) -> list[str]:
    """What a program gets whose command line somebody copies into a shell."""
    listen = 'penstock() { printf "%s\\n" "$@"; }; '
    done = subprocess.run(
        ["bash", "-c", listen + command], capture_output=True, text=True, check=True, cwd=folder
    )
    return done.stdout.splitlines()


def test_commands_for_a_database_of_a_fleet_go_to_that_one(
    connection: Connection, database_url: str, tmp_path: Path
) -> None:
    """Guard: to_database; without it the database of the environment would be changed."""
    text = "databases:\n  north:\n    url: ${NORTH_URL}\n    topics:\n"
    text += "      shop/orders: {archive: none, retention: {minimum_age: 1h}}\n"
    (tmp_path / "policies.yaml").write_text(text, "utf-8")
    north = policy_file.load(tmp_path / "policies.yaml").of_database("north")
    elsewhere = "postgresql://nobody@127.0.0.1:1/nothing"
    for each in policy.awaited(connection, north):
        run(each.create, elsewhere, tmp_path, NORTH_URL=database_url)
    (finding,) = health(connection, north)
    assert finding.command == "penstock policy apply --database north"
    run(finding.command, elsewhere, tmp_path, NORTH_URL=database_url)
    assert health(connection, north) == []


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
        PolicyDrift(orders, "retention", "3600 s, without a copy", "none")
    ]
    assert policy.drift(connection, wanted) == []
    assert policy.retention_in_force(connection)[orders].copies == 0


def test_where_dead_letters_go_is_kept_as_the_file_says(
    connection: Connection, tmp_path: Path, orders: str
) -> None:
    """Set, taken over from a hand, taken back; what was set by hand and is not named stays."""
    penstock.create_topic(connection, "shop/dead", 1)
    stream.subscribe(connection, "billing", [orders])
    stream.subscribe(connection, "other", [orders])
    said = "subscriptions: {billing: {dead_letters_to: shop/dead}, later: {dead_letters_to: x/y}}"
    wanted = policy_file.parse(said, tmp_path / "policies.yaml")
    drift = PolicyDrift("billing", "dead_letters_to", "shop/dead", "none", scope="subscription")
    assert [each.name for each in policy.awaited(connection, wanted)] == ["later", "x/y"]
    assert policy.apply(connection, wanted) == [drift]
    assert policy.drift(connection, wanted) == []
    found = subscriptions.describe_subscription(connection, "billing")
    assert (found.dead_letters_to, found.dead_letters_origin) == ("shop/dead", wanted.origin)
    penstock.forwarding.set_dead_letters_to(connection, "billing", "shop/dead")
    penstock.forwarding.set_dead_letters_to(connection, "other", "shop/dead")
    assert [(each.name, each.mendable) for each in policy.drift(connection, wanted)] == [
        ("billing", True), ("other", False),
    ]  # fmt: skip
    policy.apply(connection, wanted)
    nothing = policy_file.parse("canary: shop/orders", tmp_path / "policies.yaml")
    assert [each.name for each in policy.apply(connection, nothing)] == ["billing"]
    assert subscriptions.describe_subscription(connection, "billing").dead_letters_to is None
    assert subscriptions.describe_subscription(connection, "other").dead_letters_to == "shop/dead"


@pytest.mark.parametrize("verb", ["publish", "consume"])
def test_a_right_that_was_lost_is_drift(
    connection: Connection, tmp_path: Path, orders: str, verb: str
) -> None:
    """Nothing is forwarded then.  Applying the file again names the topic with another login."""
    penstock.create_topic(connection, "dead/letters", 1, create_namespaces=True)
    stream.subscribe(connection, "billing", [orders])
    said = "subscriptions: {billing: {dead_letters_to: dead/letters}}"
    wanted = policy_file.parse(said, tmp_path / "policies.yaml")
    policy.apply(connection, wanted)
    connection.execute("UPDATE penstock.subscriptions SET dead_letters_by = 'gone'")
    assert policy.drift(connection, wanted) == []
    walled = "dead" if verb == "publish" else "shop"
    penstock.grant_namespace(connection, walled, connection.info.user, verb)
    (drift,) = policy.drift(connection, wanted)
    assert "dead/letters, but whoever has named the topic may no" in str(drift.found)
    assert verb in str(drift.found)
    assert policy.apply(connection, wanted) == [drift]
    assert policy.drift(connection, wanted) == []
