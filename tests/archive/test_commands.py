"""``penstock archive`` and ``penstock backfill``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.cli import main
from tests.archive.logs import Log

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
