"""The verbs and ``penstock subscription`` on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ops.commands import sessions
from ops.policies import file as policy_file
from ops.seal import log_epochs
from ops.sinks.jsonl import JsonlSink
from penstock import subscriptions
from penstock.archive.markers import marker_path
from penstock.archive.targets import Target
from penstock.cli import exit_codes
from penstock.database import call
from penstock.publishing.publish import publish
from penstock.subscriptions import stream
from penstock.topics import names
from tests.consumers.process import until
from tests.kit.log import drain
from tests.kit.proof import proves
from tests.ops.conftest import TOPIC, Run

ROOT = Path(__file__).resolve().parents[2]
PENSTOCK = Path(sys.executable).with_name("penstock")

Connection = psycopg.Connection[tuple[Any, ...]]


def fill(connection: Connection, count: int = 4) -> None:
    """Publish events, spread over the partitions."""
    for number in range(count):
        publish(connection, TOPIC, f"{number}".encode(), partition=number % 2)


def written(folder: Path) -> list[str]:
    """The whole lines of a relay's files."""
    paths = [JsonlSink(folder).path(f"{TOPIC}//1", partition) for partition in range(2)]
    return [line for path in paths if path.exists() for line in path.read_text().splitlines()]


def relayed(folder: Path, count: int) -> bool:
    """Whether so many events are in the files."""
    return len(written(folder)) == count


def test_every_verb_is_registered() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    verbs = {"archive", "backfill", "clean", "daemon", "relay", "seal"}
    assert verbs <= project["entry-points"]["penstock.commands"].keys()


def test_sequence(run: Run, connection: Connection) -> None:
    fill(connection)
    (row,) = run("sequence", "-o", "json").rows
    assert (row["events"], row["busy"]) == (4, False)
    assert run("sequence", "-o", "json").rows[0]["events"] == 0
    assert run("sequence", "--max-passes", "0").code == 2


def test_relay_in_one_go(run: Run, connection: Connection, tmp_path: Path) -> None:
    stream.subscribe(connection, "export", [TOPIC])
    fill(connection)
    run("sequence")
    (row,) = run("relay", "export", f"jsonl:{tmp_path}", "-o", "json").rows
    assert (row["events"], row["drained"], row["failures"]) == (4, True, 0)
    assert len(written(tmp_path)) == 4


def test_relay_with_rules_of_the_command_and_of_the_policy_file(
    run: Run, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("order.paid", "other", "order.sent"):
        publish(connection, TOPIC, b"{}", type=kind, headers={"t": kind}, partition=0)
    drain(connection)
    stream.subscribe(connection, "export", [TOPIC])
    stream.subscribe(connection, "out", [TOPIC])
    rules = ("--type", "order.*", "--header", "x={type}", "--key", "{header:t}")
    (row,) = run("relay", "export", f"jsonl:{tmp_path}", *rules, "-o", "json").rows
    assert (row["events"], row["left_out"]) == (2, 1)
    found = [json.loads(line) for line in written(tmp_path)]
    assert [each["partitionkey"] for each in found] == ["order.paid", "order.sent"]
    assert [each["x"] for each in found] == ["order.paid", "order.sent"]
    file = tmp_path / "policies.yaml"
    rule = "{types: [other], where: {t: o*}, headers: {y: '{topic}'}}"
    file.write_text(
        f"relays: {{files: {{topic: {TOPIC}, subscription: out, sink: jsonl:there,"
        f" rules: {rule}}}}}"
    )
    monkeypatch.setenv(policy_file.VARIABLE, str(file))
    (row,) = run("relay", "out", "-o", "json").rows
    assert (row["events"], row["left_out"]) == (1, 2)
    assert json.loads(written(tmp_path / "there")[0])["y"] == TOPIC
    refused = run("relay", "out", "jsonl:x", "--to", "a", "-o", "json")
    assert "has no topics to choose" in refused.err


def test_a_range_is_replayed_beside_the_relay_and_its_status_shown(
    run: Run, connection: Connection, tmp_path: Path
) -> None:
    stream.subscribe(connection, "export", [TOPIC])
    fill(connection, 6)
    drain(connection)
    assert run("relay", "export", f"jsonl:{tmp_path}", "--rate", "1000", "-o", "json").code == 0
    rows = run("relay", "status", "export", "-o", "json").rows
    assert [(each["position"], each["breaker"]) for each in rows] == [(3, "closed")] * 2
    asked = ("relay", "replay", TOPIC, f"jsonl:{tmp_path}", "--from", "2", "--partition", "0")
    (counted,) = run(*asked, "--dry-run", "-o", "json").rows
    assert counted["total_events"] == 2
    assert not list(tmp_path.glob("backfill-*"))
    (done,) = run(*asked, "--rate", "1000", "-o", "json").rows
    assert (done["state"], done["done_events"]) == ("done", 2)
    (file,) = tmp_path.glob("backfill-*/*.jsonl")
    assert [json.loads(line)["sequence"][-1] for line in file.read_text().splitlines()] == [
        "2",
        "3",
    ]


def test_relay_says_no_when_something_is_left(
    run: Run, connection: Connection, tmp_path: Path
) -> None:
    stream.subscribe(connection, "export", [TOPIC])
    fill(connection)
    run("sequence")
    left = run("relay", "export", f"jsonl:{tmp_path}", "--max-seconds", "0", "-o", "json")
    assert (left.code, json.loads(left.out)[0]["drained"]) == (exit_codes.EXIT_NO, False)


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["nobody", "jsonl:out"], 2, 'no subscription "nobody"'),
        (["export", "pigeon:out"], 2, "no sink pigeon"),
        (["export", "jsonl:{file}"], 3, "cannot be"),
    ],
)
def test_relay_refuses(
    run: Run,
    connection: Connection,
    tmp_path: Path,
    *,
    arguments: list[str],
    code: int,
    problem: str,
) -> None:
    stream.subscribe(connection, "export", [TOPIC])
    fill(connection)
    run("sequence")
    file = tmp_path / "file"
    file.write_text("in the way")
    refused = run("relay", *(each.format(file=file) for each in arguments))
    assert (refused.code, refused.out) == (code, "")
    assert len(refused.err.splitlines()) == 1
    assert problem in refused.err


def test_relay_forever_until_sigterm(
    run: Run, connection: Connection, database_url: str, tmp_path: Path
) -> None:
    """The installed command, in a process of its own."""
    stream.subscribe(connection, "export", [TOPIC])
    folder = tmp_path / "out"
    relay = subprocess.Popen(
        [PENSTOCK, "relay", "export", f"jsonl:{folder}", "--forever"],
        env=os.environ | {"PENSTOCK_DATABASE_URL": database_url},
    )
    try:
        for count in (4, 8):
            fill(connection)
            run("sequence")
            until(partial(relayed, folder, count), f"{count} relayed events")
        relay.terminate()
        assert relay.wait(45) == 0
    finally:
        relay.kill()
        relay.wait(30)
    assert {each.holder for each in subscriptions.lag(connection, "export")} == {None}
    assert {each.lag_events for each in subscriptions.lag(connection, "export")} == {0}


def test_sweep(run: Run, connection: Connection) -> None:
    stream.subscribe(connection, "billing", [TOPIC])
    fill(connection)
    run("sequence")
    stream.check_in(connection, stream.join(connection, "billing", "dead"))
    nothing = {
        "expired_consumers": 0, "locked_leases": 0, "expired_letters": 0,
        "forgotten_copies": 0, "orphaned_chunks": 0,
        "leftover_rows": 0, "forgotten_sends": 0, "task_letters": 0,
        "moved_letters": 0,
    }  # fmt: skip
    assert run("sweep", "-o", "json").rows == [nothing]
    connection.execute("UPDATE penstock.consumers SET deadline = clock_timestamp()")
    assert run("sweep", "-o", "json").rows == [nothing | {"expired_consumers": 1}]
    assert {each.holder for each in subscriptions.lag(connection, "billing")} == {None}


def test_seal_and_clean(run: Run, connection: Connection) -> None:
    fill(connection)
    run("sequence")
    assert run("seal", TOPIC, "-o", "json").rows == []
    sealed = run("seal", TOPIC, "--max-age-seconds", "0", "-o", "json").rows
    assert [(row["partition"], row["log_epoch"], row["event_count"]) for row in sealed] == [
        (0, 1, 2),
        (1, 1, 2),
    ]
    refused = run("clean", TOPIC)
    assert (refused.code, refused.out) == (2, "")
    assert "--yes" in refused.err
    held = run("clean", TOPIC, "--yes", "-o", "json").rows
    assert {(row["low_sequence"], row["reason"]) for row in held} == {(1, "no retention policy")}
    assert run("seal", "bank/nothing").code == 2


def test_seal_goes_by_the_policy_file(
    run: Run, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So cron seals small logs by age, all topics in one call; an option comes before the file.

    Guard: the file's values; with the presets a log below 100,000 events is never sealed.
    """
    names.create_topic(connection, "bank/other", 1)
    file = tmp_path / "policies.yaml"
    file.write_text(f"topics: {{{TOPIC}: {{seal: {{max_events: 2, max_age: 0s}}}}, bank/none: }}")
    monkeypatch.setenv("PENSTOCK_POLICIES", str(file))
    fill(connection)
    run("sequence")
    said = run("seal", "bank/other")
    assert "no seal policy for bank/other" in said.err
    larger = ("--max-age-seconds", "3600", "--max-events", "3")
    assert run("seal", TOPIC, *larger, "-o", "json").rows == []
    sealed = run("seal", "-o", "json").rows
    assert [(row["topic"], row["event_count"]) for row in sealed] == [(TOPIC, 2), (TOPIC, 2)]
    file.write_text("topics: {bank/none: {seal: {max_age: 1h}}}")
    nothing = run("seal", "-o", "json")
    assert (nothing.rows, "bank/none does not exist yet" in nothing.err) == ([], True)
    file.write_text("")
    refused = run("seal")
    assert (refused.code, "no topic has a seal policy" in refused.err) == (2, True)


def test_without_a_policy_file_seal_has_its_presets(
    run: Run, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that has no checkout; a file that is named has to be there."""
    monkeypatch.setattr(policy_file, "default_path", lambda *_: tmp_path / "none.yaml")
    assert run("seal", TOPIC, "-o", "json").rows == []
    monkeypatch.setenv("PENSTOCK_POLICIES", str(tmp_path / "none.yaml"))
    refused = run("seal", TOPIC)
    assert (refused.code, "cannot be read" in refused.err) == (2, True)


def test_relay_takes_its_sink_from_the_policy_file(
    run: Run, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the subscription; without one of this name it says which there are."""
    file = tmp_path / "policies.yaml"
    file.write_text(f"relays: {{files: {{topic: {TOPIC}, subscription: out, sink: jsonl:there}}}}")
    monkeypatch.setenv("PENSTOCK_POLICIES", str(file))
    fill(connection)
    run("sequence")
    stream.subscribe(connection, "out", [TOPIC], start="earliest")
    assert run("relay", "out", "-o", "json").rows[0]["drained"] is True
    assert (tmp_path / "there").is_dir()
    refused = run("relay", "files")
    assert (refused.code, "of the subscription 'files'" in refused.err) == (2, True)


def test_clean_says_which_target_is_not_there(
    run: Run, connection: Connection, tmp_path: Path
) -> None:
    """What cannot be read back stays; a place is taken over only by hand."""
    fill(connection)
    run("sequence")
    run("seal", TOPIC, "--max-age-seconds", "0")
    place = f"local={tmp_path}"
    assert "now marked" in run("target", "adopt", place).err
    assert "already marked" in run("target", "adopt", place).err
    for epoch in log_epochs(connection, TOPIC):
        copy = {"event_count": epoch.event_count, "checksum": epoch.checksum, "location": "there"}
        keys = {"topic": TOPIC, "partition": epoch.partition, "log_epoch": epoch.log_epoch}
        folder = {"target": "local", "layout": 1, "first_row": 0}
        call(connection, "record_copy", **folder, **keys, **copy)
    kept = {"minimum_age_seconds": 0, "copies": 1, "origin": "hand", "targets": ["local"]}
    call(connection, "set_retention", max_bytes=None, topic=TOPIC, **kept)
    marker_path(Target("local", str(tmp_path))).unlink()
    held = run("clean", TOPIC, "--yes", "--target", place)
    assert "of log epoch 1 this run has read back 0 of 1 copies" in " ".join(held.out.split())
    assert "is not available" in held.err
    refused = run("target", "adopt", place)
    assert refused.code != 0
    assert "--yes" in refused.err
    assert "now marked" in run("target", "adopt", place, "--yes").err


@pytest.mark.parametrize("place", ["/etc/passwd", "/etc/passwd/below", "/proc/1/below"])
def test_a_place_that_can_be_no_target_is_named(run: Run, place: str) -> None:
    """Guard: what the file system refuses is TargetUnavailable."""
    refused = run("target", "adopt", f"local={place}", "--yes")
    assert refused.code != 0
    assert f"the archive target at {place} is not available" in refused.err


def test_a_copy_is_asked_for_on_a_known_target(run: Run, connection: Connection) -> None:
    """Nothing is written for a name that the policy file does not have."""
    fill(connection)
    refused = run("backfill", "request", "copy", TOPIC, "--target", "nosuch")
    assert refused.code == 2
    assert "nosuch" in refused.err
    assert run("backfill", "list", "-o", "json").rows == []


@pytest.mark.parametrize("verb", ["archive", "backfill"])
@pytest.mark.parametrize(
    ("target", "problem"), [("cold=", "NAME=DIRECTORY"), ("a b=out", "target"), ("moon", "moon")]
)
def test_a_target_that_is_none(run: Run, verb: str, target: str, problem: str) -> None:
    refused = run(verb, TOPIC, "--target", target)
    assert refused.code == 2
    assert problem in refused.err
    assert len(refused.err.splitlines()) == 1


def test_subscriptions(run: Run, connection: Connection) -> None:
    fill(connection)
    run("sequence")
    created = run("subscription", "create", "billing", "--topic", TOPIC)
    assert (created.code, created.err) == (0, "subscription billing: 1 topic added\n")
    rows = run("subscription", "describe", "billing", "-o", "json").json["cursors"]
    assert {(row["subscription"], row["position"], row["lag_events"]) for row in rows} == {
        ("billing", 0, 2)
    }
    assert run("subscription", "seek", "billing", TOPIC, "--to", "latest", "--yes").code == 0
    assert stream.position(connection, "billing", TOPIC) == {0: 2, 1: 2}
    moved = run("subscription", "seek", "billing", TOPIC, "--to", "2", "--partition", "1", "--yes")
    assert moved.err == "subscription billing, partition 1: reads on after 1\n"
    assert stream.position(connection, "billing", TOPIC) == {0: 2, 1: 1}
    assert run("subscription", "delete", "billing").code == 2
    assert run("subscription", "delete", "billing", "--yes").code == 0
    assert run("subscription", "list", "-o", "json").rows == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["describe", "nobody"],
        ["delete", "nobody", "--yes"],
        ["seek", "nobody", TOPIC, "--to", "latest", "--yes"],
        ["create", "billing", "--topic", "bank/nothing"],
        ["create", "billing", "--topic", TOPIC, "--start", "yesterday"],
        ["create", "", "--topic", TOPIC],
    ],
)
def test_wrong_subscription_calls(run: Run, connection: Connection, arguments: list[str]) -> None:
    refused = run("subscription", *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.err.splitlines()) == 1
    assert subscriptions.lag(connection) == []


def test_the_daemon_finds_handlers_where_it_is_started(
    run: Run, connection: Connection, database_url: str, tmp_path: Path
) -> None:
    """``penstock daemon`` in the folder of an application."""
    stream.subscribe(connection, "billing", [TOPIC])
    fill(connection)
    (tmp_path / "shop.py").write_text(
        "from pathlib import Path\n\n\ndef bill(event):\n"
        "    Path(f'{event.partition}-{event.sequence}').touch()\n"
    )
    roles = ("--roles", "sequencer,consumers", "--consumer", "billing=shop:bill")
    daemon = subprocess.Popen(
        [PENSTOCK, "daemon", *roles, "--log-level", "error"],
        cwd=tmp_path,
        env=os.environ | {"PENSTOCK_DATABASE_URL": database_url},
    )
    try:
        until(lambda: len(list(tmp_path.glob("[01]-[12]"))) == 4, "the handler's files")
        daemon.terminate()
        assert daemon.wait(45) == 0
    finally:
        daemon.kill()
        daemon.wait(30)


def placed(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, rest: str = "") -> None:
    """A policy file with a topic on two targets, and two sealed log epochs."""
    file = tmp_path / "policies.yaml"
    archive = "{targets: [a, b], copies: 2, ack_quorum: 1}"
    file.write_text(f"targets: {{a: a, b: b}}\ntopics: {{{TOPIC}: {{archive: {archive}}}}}\n{rest}")
    monkeypatch.setenv("PENSTOCK_POLICIES", str(file))
    run("sequence")
    assert len(run("seal", TOPIC, "--max-age-seconds", "0", "-o", "json").rows) == 2


def recorded(connection: Connection, target: Target) -> None:
    """Say that a target holds every log epoch."""
    for epoch in log_epochs(connection, TOPIC):
        call(
            connection, "record_copy", topic=TOPIC, partition=epoch.partition,
            log_epoch=epoch.log_epoch, target=target.name, location="none", layout=1, first_row=0,
            event_count=epoch.event_count, checksum=epoch.checksum,
        )  # fmt: skip


def test_targets_and_topics_of_the_archive(
    run: Run, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which targets are there, what lacks a copy there, and what has no quorum."""
    fill(connection)
    placed(tmp_path, run, monkeypatch)
    topics = run("target", "topics", "-o", "json")
    assert topics.code == exit_codes.EXIT_NO
    (row,) = json.loads(topics.out)
    assert (row["log_epochs"], row["below_quorum"], row["below_copies"]) == (2, 2, 2)
    recorded(connection, Target("a", str(tmp_path / "a")))
    for seconds in (1.5, None):
        call(connection, "note_target_speed", target="b", seconds=seconds)
    topics = run("target", "topics", "-o", "json")
    assert topics.code == 0
    assert [(row["below_quorum"], row["below_copies"]) for row in topics.rows] == [(0, 2)]
    first, second = run("target", "list", "-o", "json").rows
    assert (first["copies"], first["lacking"], first["seconds"]) == (2, 0, None)
    assert "is not available" in first["state"]
    assert (second["copies"], second["lacking"], second["failures"]) == (0, 2, 1)
    assert (second["state"], second["seconds"]) == ("not used yet", 60)


@proves("D10 of many databases")
def test_a_command_for_a_database_of_the_policy_file(
    run: Run,
    connection: Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    database_url: str,
) -> None:
    """--database: its address, its policies and its folder in each target."""
    fill(connection)
    archive = "{archive: {targets: [a, b], copies: 1}, retention: {minimum_age: 1h}}"
    placed(
        tmp_path, run, monkeypatch,
        f"databases: {{eu: {{url: '${{EU}}', topics: {{{TOPIC}: {archive}}}}}}}",
    )  # fmt: skip
    monkeypatch.setenv("EU", database_url)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    eu = ("--database", "eu")
    (row,) = json.loads(run("target", "topics", *eu, "-o", "json").out)
    assert (row["copies"], row["below_quorum"]) == (1, 2)
    assert run("policy", "apply", *eu).code == 0
    assert run("policy", "diff", *eu).code == 0
    assert "now marked" in run("target", "adopt", "a", "--yes", *eu).err
    assert marker_path(Target("a", str(tmp_path / "a" / "eu"))).exists()
    refused = run("seal", TOPIC, "--database", "asia")
    assert (refused.code, "there is no database 'asia'" in refused.err) == (2, True)


def test_copies_by_policy_need_a_policy(
    run: Run, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where nothing is lacking, no Spark is started."""
    fill(connection)
    placed(tmp_path, run, monkeypatch)
    for name in ("a", "b"):
        recorded(connection, Target(name, str(tmp_path / name)))
    monkeypatch.setattr(sessions, "spark_session", None)
    for verb in ("archive", "backfill"):
        assert run(verb, TOPIC).code == 0
        assert "names no archive targets for bank/other" in run(verb, "bank/other").err
    assert "--source is given without" in run("backfill", TOPIC, "--source", "a").err
