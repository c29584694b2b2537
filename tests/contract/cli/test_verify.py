"""`penstock verify` on every engine: the probes of Dagster's checks, without Dagster."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ops.policies import file as policy_file
from penstock.database import config
from penstock.subscriptions import policies
from tests import command
from tests.contract.databases import ContractDatabase
from tests.kit.log import TOPIC, drain, put, topic

POLICIES = f"""
targets: {{one: archive}}
topics:
  {TOPIC}: {{archive: [one]}}
relays: {{file: {{topic: {TOPIC}, sink: "jsonl:relayed"}}}}
canary: ops/canary
limits: {{end_to_end: 0, relay_lag: 1h, consumer_lag: 1h}}
"""


@pytest.fixture
def log(db: ContractDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ContractDatabase:
    """A topic with events; the policy file is applied."""
    monkeypatch.setenv(config.URL_VARIABLE, db.url)
    monkeypatch.setenv(policy_file.VARIABLE, str(tmp_path / "policies.yaml"))
    (tmp_path / "policies.yaml").write_text(POLICIES, encoding="utf-8")
    with closing(db.connect()) as own:
        topic(own)
        for number in range(3):
            put(own, str(number))
            drain(own)
    return db


def verified(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and what each probe says by its name and what it is of."""
    done = command.run(capsys, "verify", *options, "--output", "json")
    rows = json.loads(done.out)
    return done.code, {f"{row['check']} {row['of']}".strip(): row for row in rows}


def test_a_whole_installation_is_found_whole_and_a_damaged_one_not(
    log: ContractDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(capsys, "policy", "apply").code == 0
    code, found = verified(capsys, "--no-canary")
    assert code == 0, {name: row for name, row in found.items() if row["verdict"] != "ok"}
    assert set(found) == {
        "unsequenced_age", "horizon_holder", f"no_sequence_gap {TOPIC}", f"consumer_lag {TOPIC}",
        f"lease_coverage {TOPIC}", f"dead_letters {TOPIC}", f"epochs_contiguous {TOPIC}",
        f"readable {TOPIC}", f"schema_drift {TOPIC}", "backlog_age file", "dead_letters file",
        "policy_drift", "no_errors",
    }  # fmt: skip

    with closing(log.connect()) as own:
        policies.set_policy(own, "retry", {"max_attempts": 5}, scope="topic", name=TOPIC)
    log.run("DELETE FROM penstock.chunks WHERE first_sequence = 2")
    code, found = verified(capsys)
    assert code == 1
    assert found[f"no_sequence_gap {TOPIC}"]["verdict"] == "ERROR"
    assert found[f"no_sequence_gap {TOPIC}"]["found"]["gaps"][0]["expected"] == 2
    (by_hand,) = found["policy_drift"]["found"]["set by hand"]
    assert (by_hand["of"], by_hand["policy"]) == (f"topic {TOPIC}", "retry") and by_hand["by"]
    # Nobody sequences here, so the canary is late; the limit of no time at all says so.
    assert found["end_to_end"]["verdict"] == "warning"
    assert "nobody sequenced it" in found["end_to_end"]["found"]["problem"]


def test_a_topic_that_is_not_there_is_refused(
    log: ContractDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    done = command.run(capsys, "verify", "no/such")
    assert done.code != 0 and "no/such" in done.err
    assert command.run(capsys, "verify", TOPIC, "--no-canary").code == 1
