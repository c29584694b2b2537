"""What Spark needs from the machine: Java, and a Python of its workers that has Penstock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import ConfigurationError
from penstock.spark import register, workers
from tests.kit.interpreter import bare_interpreter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_START = """
from ops.spark import local_session
from penstock.errors import ConfigurationError
from resources.spark import SparkResource
for start in (local_session, SparkResource().session):
    try:
        start()
    except ConfigurationError as error:
        print(error.message, "|", error.hint)
"""


def test_without_java_the_error_says_what_to_install(tmp_path: Path) -> None:
    """Our own session and Dagster's."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "basename", "env", "ps", "sh"):
        (programs / name).symlink_to(
            next(path for path in (Path("/bin", name), Path("/usr/bin", name)) if path.exists())
        )
    environment = {"PATH": str(programs), "PYTHONPATH": os.getcwd(), "HOME": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-c", _START], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(said) == 2
    for line in said:
        assert "JAVA_GATEWAY_EXITED" in line
        assert "install Java 17 or newer, and set JAVA_HOME" in line


@pytest.mark.spark
def test_workers_without_penstock_are_found_before_a_task_is(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of an activated environment Spark takes another Python."""
    bare = str(bare_interpreter(tmp_path / "python"))
    checkout = os.getcwd()
    monkeypatch.chdir(tmp_path)  # workers import from there too
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare)
    with pytest.raises(ConfigurationError, match="which cannot import penstock") as failure:
        register(spark)
    assert failure.value.hint is not None
    assert sys.executable in failure.value.hint
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError):
        register(spark)
    monkeypatch.setenv("PYTHONPATH", checkout)  # the workers inherit it
    workers._has_penstock.cache_clear()
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare)
    register(spark)
