"""`penstock fetch --from-lsn`: over the database and the archive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ops import policy_file
from ops.seal import seal
from penstock.archive.targets import Target
from penstock.database import config
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from tests import command
from tests.contract.databases import ContractDatabase
from tests.kit.copies import copy_all, drop, remove
from tests.kit.log import TOPIC, drain, topic

FETCH = ("fetch", TOPIC, "--partition", "0", "--from-lsn")


@pytest.fixture
def place(db: ContractDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """Ten events that only this target has, and five that the database has."""
    monkeypatch.setenv(config.URL_VARIABLE, db.url)
    monkeypatch.setenv(policy_file.VARIABLE, str(tmp_path / "policies.yaml"))
    (tmp_path / "policies.yaml").write_text("targets: {one: archive, two: '${NOT_SET_HERE}'}\n")
    own = db.connect()
    topic(own)
    publish_batch(own, [Message(TOPIC, b"%d" % n, key="k") for n in range(1, 16)])
    drain(own)
    seal(own, TOPIC, max_events=10)
    found = Target("one", str(tmp_path / "archive"))
    copy_all(own, TOPIC, found)
    drop(own, TOPIC, [found])
    return found


def sequences(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[int]:
    """What the command writes; it has to succeed."""
    done = command.run(capsys, *arguments, "--output", "json")
    assert done.code == 0, done.err
    found: list[dict[str, Any]] = json.loads(done.out)
    return [each["sequence"] for each in found]


def test_hot_and_cold_come_in_order(
    db: ContractDatabase, place: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    """The place comes from the option, by a name of the policy file, or as all that it names."""
    for chosen in ([f"--target=one={place.uri}"], ["--target", "one"], []):
        for start in ("1.8", "8", "0.8"):
            found = sequences(capsys, *FETCH, start, "--max", "5", *chosen)
            assert found == [8, 9, 10, 11, 12]
    assert sequences(capsys, *FETCH, "16") == []


def test_a_missing_copy_and_wrong_calls_are_told(
    db: ContractDatabase, place: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, words in (
        ((*FETCH, "2.8"), "not in log epoch 2"),
        ((*FETCH, "x.8"), "no position of the log"),
        ((*FETCH, "8", "--target", "unknown"), "there is no archive target 'unknown'"),
        ((*FETCH, "8", "--target", "one="), "is not NAME=DIRECTORY"),
        ((*FETCH, "8", "--from", "8"), "one position of one partition"),
        (("fetch", TOPIC, "--from-lsn", "8"), "one position of one partition"),
        (("fetch", TOPIC, "--partition", "0", "--target", "one"), "one position of one partition"),
    ):
        done = command.run(capsys, *arguments)
        assert done.code in {2, 3}, arguments
        assert words in done.err, arguments
    remove(place)
    done = command.run(capsys, *FETCH, "8")
    assert done.code == 3
    assert f'penstock backfill "{TOPIC}"' in done.err
