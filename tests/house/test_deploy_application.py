"""deploy/application: what an application runs without the platform."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.house.test_deploy import DEPLOY, ROOT, fits, verified

FOLDER = DEPLOY / "application"
UNITS = sorted(FOLDER.glob("*.service"))
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "compose.yaml").read_text())[
    "services"
]


def _started() -> list[list[str]]:
    """Every command of a unit or a container, without its program."""
    text = "\n".join(unit.read_text() for unit in UNITS)
    found = [line.split()[1:] for line in re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)]
    return found + [each["command"][1:] for each in SERVICES.values()]


def test_systemd_reads_the_units(tmp_path: Path) -> None:
    """Guard: systemd itself.  Programs of the application are not here."""
    assert [unit.name for unit in UNITS] == [
        "penstock-upkeep.service", "penstock-work@.service", "penstock-worker.service",
    ]  # fmt: skip
    assert [line for line in verified(FOLDER) if "/opt/app/" not in line] == []
    wrong = UNITS[0].read_text().replace("RestartSec", "RestartSecs")
    (tmp_path / "penstock-wrong.service").write_text(wrong)
    assert any("RestartSecs" in line for line in verified(tmp_path))


def test_compose_keeps_to_its_schema() -> None:
    """As the platform's file does."""
    assert fits(FOLDER / "compose.yaml", "--builtin-schema", "vendor.compose-spec")


def test_whatever_ends_a_program_it_is_started_again() -> None:
    """A handler may crash its process, or end it with code 0.  Guard: Restart=always."""
    for unit in UNITS:
        assert "\nRestart=always\n" in unit.read_text(), unit.name
    restarts = {name: each["restart"] for name, each in SERVICES.items()}
    assert restarts == {
        "migrate": "no", "upkeep": "unless-stopped", "worker": "unless-stopped",
        "mails": "unless-stopped",
    }  # fmt: skip


@cache
def _help(command: str) -> str:
    program = Path(sys.executable).parent / "penstock"
    return subprocess.run(
        [program, command, "--help"], capture_output=True, text=True, timeout=120, check=True,
        cwd=ROOT,
    ).stdout  # fmt: skip


@pytest.mark.parametrize("command", _started(), ids=lambda each: each[0])
def test_each_command_and_option_exists(command: list[str]) -> None:
    """The program's own help names them."""
    own = command[: command.index("--")] if "--" in command else command
    for option in (each for each in own if each.startswith("--")):
        assert re.search(rf"(?<![\w-]){option}\b", _help(command[0])), option


def test_a_program_has_the_time_that_its_drain_takes() -> None:
    """The worker's drain and a queue's command end before systemd and compose kill them."""
    texts = [unit.read_text() for unit in UNITS]
    stops = [int(re.findall(r"TimeoutStopSec=(\d+)", text)[0]) for text in texts]
    for text, stop in zip(texts, stops, strict=True):
        takes = max(map(int, re.findall(r"--[a-z-]*seconds (\d+)", text)), default=30)
        assert stop > takes
