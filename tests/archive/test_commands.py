"""``penstock archive`` and ``penstock backfill``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ops.seal import log_epochs
from penstock.archive.targets import Target
from penstock.cli import main
from tests.archive.logs import Log, archived_rows, bring, flip, only_file, states
from tests.archive.test_rollup import yesterday
from tests.kit.proof import proves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_archive_and_backfill(
    spark: SparkSession,
    log: Log,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", log.url)
    log.publish_odd()
    log.seal()
    target = tmp_path / "cold"
    assert main.run(["archive", log.topic, "--target", f"cold={target}", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["partition"], row["target"], row["written"]) for row in rows] == [
        (0, "cold", True),
        (1, "cold", True),
    ]
    assert main.run(["backfill", log.topic, "--target", f"cold={target}", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    (tmp_path / "file").write_text("no directory")
    place = tmp_path / "file" / "x"
    assert main.run(["archive", log.topic, "--target", f"warm={place}"]) == 3
    assert f"the archive target at {place} is not available" in capsys.readouterr().err


@proves("D10 over damage")
def test_a_flipped_byte_of_what_the_database_has_dropped_is_mended_by_commands(
    spark: SparkSession,
    log: Log,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its size is as it was, so only reading finds it: first by the audit, then by a rollup."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", log.url)
    log.publish_odd()
    log.publish_many(12)
    log.seal(max_events=6)
    yesterday(log)
    one, two = (Target(name, str(tmp_path / name)) for name in ("one", "two"))
    for each in (one, two):
        bring(log, each, log_epochs(log.connection, log.topic))
    rows = log.rows()
    log.connection.execute("UPDATE penstock.partitions SET low_sequence = 13")
    mend = ["backfill", log.topic, "--target", f"one={one.uri}"]
    audit = ["target", "audit", log.topic, "--target", f"one={one.uri}"]

    flip(only_file(one, log, (0, 1)))
    assert main.run([*mend, "--source", f"two={two.uri}"]) == 0
    assert "found by reading: penstock target audit" in capsys.readouterr().err
    assert main.run([*audit, "--target", f"two={two.uri}", "-o", "json"]) == 1
    out, err = capsys.readouterr()
    assert [(row["copies"], row["damaged"]) for row in json.loads(out)] == [(4, 1), (4, 0)]
    assert f"one: log epoch 1 of {log.topic}/0 is damaged" in err
    assert f"penstock backfill {log.topic}" in err
    assert main.run(mend) == 3
    assert "give a source that has a copy recorded: --source two" in capsys.readouterr().err
    flip(only_file(one, log, (1, 2)))
    rolled = ["rollup", log.topic, "--target", f"one={one.uri}"]
    assert main.run(rolled) == 3
    assert states(log).count("missing") == 2
    assert main.run([*mend, "--source", f"two={two.uri}"]) == 0
    assert main.run(rolled) == 0
    assert archived_rows(one, log) == rows
