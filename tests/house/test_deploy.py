"""The files of deploy/: each is read by the program that it is for, or compared with its schema."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from dagster import DagsterInstance

from tools.servers.stores import SYSTEMD_ANALYZE

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
#: Keys of the values of Dagster's chart 1.13, as its templates read them (looked up on 2026-11-23).
#: A tree of names; None: anything that Kubernetes or the run launcher takes.
CHART: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "dagster_chart.yaml").read_text())


def verified(folder: Path) -> list[str]:
    """What systemd finds wrong in the units of a folder, but for programs that are not here."""
    units = SYSTEMD_ANALYZE.root() / "usr" / "lib" / "systemd" / "system"
    done = subprocess.run(
        [*SYSTEMD_ANALYZE.command(), "verify", *map(str, sorted(folder.glob("*.service")))],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:{units}"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said = (done.stdout + done.stderr).splitlines()
    return [line for line in said if "/opt/penstock/" not in line]


def test_systemd_reads_the_units(tmp_path: Path) -> None:
    """Guard: systemd itself.  It also finds a setting that does not exist."""
    assert len(UNITS) == 4
    assert verified(DEPLOY / "systemd") == []
    text = UNITS[0].read_text()
    (tmp_path / "penstock-wrong.service").write_text(text.replace("KillMode", "KilMode"))
    assert any("KilMode" in line for line in verified(tmp_path))


def test_dagster_reads_its_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    """A real PostgreSQL holds runs and events; a setting that Dagster does not know is refused."""
    parts = urlsplit(database_url)
    for name, value in {
        "HOST": parts.hostname, "PORT": str(parts.port), "USER": parts.username,
        "PASSWORD": parts.password or "none", "DB": parts.path.strip("/"),
    }.items():  # fmt: skip
        monkeypatch.setenv(f"DAGSTER_POSTGRES_{name}", str(value))
    settings = (DEPLOY / "dagster" / "dagster.yaml").read_text()
    (tmp_path / "dagster.yaml").write_text(settings)
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        assert type(instance.run_storage).__name__ == "PostgresRunStorage"
        assert instance.get_runs_count() == 0
        assert instance.run_monitoring_enabled
        assert not instance.telemetry_enabled
    (tmp_path / "dagster.yaml").write_text(settings.replace("purge_after_days", "purge_after"))
    with (
        pytest.raises(Exception, match="purge_after"),
        DagsterInstance.from_config(str(tmp_path)) as instance,
    ):
        instance.get_settings("retention")


def test_compose_keeps_to_its_schema(tmp_path: Path) -> None:
    """Guard: the schema of the Compose specification that check-jsonschema carries."""

    def check(path: Path) -> int:
        return subprocess.run(
            [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec",
             str(path)],
            capture_output=True, timeout=60, check=False,
        ).returncode  # fmt: skip

    text = (DEPLOY / "compose.yaml").read_text()
    assert check(DEPLOY / "compose.yaml") == 0
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(text.replace("healthcheck:", "healthchek:", 1))
    assert check(wrong) != 0


def unknown(values: Any, known: Any, path: str = "") -> list[str]:
    """The keys of values that the chart does not have."""
    if known is None:
        return []
    if isinstance(values, list):
        return [each for value in values for each in unknown(value, known, path)]
    if not isinstance(values, dict):
        return []
    if not isinstance(known, dict):
        return [path]
    found = [f"{path}.{key}" for key in values if key not in known]
    for key in values.keys() & known.keys():
        found += unknown(values[key], known[key], f"{path}.{key}")
    return found


def test_the_chart_knows_every_value() -> None:
    values = yaml.safe_load((DEPLOY / "helm" / "values.yaml").read_text())
    assert unknown(values, CHART) == []
    values["dagsterDaemon"]["runCordinator"] = values["dagsterDaemon"].pop("runCoordinator")
    assert unknown(values, CHART) == [".dagsterDaemon.runCordinator"]


def commands() -> list[list[str]]:
    """Every command that a unit or a container runs."""
    found = [
        line.partition("=")[2].split()
        for unit in UNITS
        for line in unit.read_text().splitlines()
        if line.startswith("ExecStart=")
    ]
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return found + [each["command"] for each in services.values() if "command" in each]


@cache
def _help(*called: str) -> str:
    return subprocess.run(
        [*called, "--help"], capture_output=True, text=True, timeout=120, check=True, cwd=ROOT
    ).stdout


@pytest.mark.parametrize("command", commands(), ids=lambda each: Path(each[0]).name)
def test_each_command_and_option_exists(command: list[str]) -> None:
    """The program's own help names the options."""
    program, *rest = command
    words = [each for each in rest if not each.startswith("-") and re.fullmatch(r"[a-z-]+", each)]
    if Path(program).name == "python":
        called = [sys.executable, "-m", "consumers"]
    else:
        subcommands = words[: {"dagster": 2, "penstock": 1, "dagster-daemon": 1}.get(
            Path(program).name, 0
        )]  # fmt: skip
        called = [str(Path(sys.executable).parent / Path(program).name), *subcommands]
    told = _help(*called)
    for option in {each for each in rest if each.startswith("-")} - {"-m"}:
        assert re.search(rf"(?<![\w-]){option}\b", told), f"{program} does not know {option}"


def test_secrets_come_from_the_environment() -> None:
    """Guard: no password and no address with one stands in a file of deploy/."""
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            for line in path.read_text().splitlines():
                found = re.search(r"(?i)(password|secret)\w*: *(?P<value>.*)", line.strip("# "))
                value = found["value"].strip() if found else ""
                is_safe = value.startswith(("${", "{env:", "dagster-postgresql-secret", "false"))
                assert not value or is_safe, f"{path.name}: {line.strip()}"
                assert not re.search(r"://[^/\s:]+:[^/\s@]+@", line), f"{path.name}: {line}"
