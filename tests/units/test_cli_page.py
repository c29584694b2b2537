"""`docs/cli.md` names every command and every check of the doctor, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from penstock import doctor
from penstock.cli.root import root
from penstock.doctor import mysql_settings, postgres_settings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text("utf-8")


def commands() -> dict[str, list[str]]:
    """Each command with its sub-commands."""
    group = typer.main.get_command(root)
    context = typer.Context(group)
    found = {}
    for name in group.list_commands(context):  # type: ignore[attr-defined]
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        found[name] = sorted(getattr(command, "commands", {}))
    return found


def test_every_command_is_named() -> None:
    named = set(re.findall(r"`penstock ([a-z][a-z-]*)[ `]", PAGE))
    assert named == set(commands())


def test_every_sub_command_is_named() -> None:
    for name, inner in commands().items():
        if not inner:
            continue
        (row,) = re.findall(rf"^\| `penstock {name}` \| (.*)$", PAGE, re.MULTILINE)
        assert sorted(re.findall(r"`([a-z]+)`", row)) == inner, name


def test_every_check_of_the_doctor_is_named() -> None:
    folder = Path(doctor.__file__).parent
    texts = "".join(each.read_text("utf-8") for each in folder.glob("*.py"))
    checks = set(re.findall(r'\b(?:error|warning)\(\s*"(\w+)"', texts))
    checks |= {rule.check for rule in postgres_settings.RULES.values()}
    checks |= {rule.check for rule in mysql_settings.RULES.values()}
    _, _, table = PAGE.partition("## The doctor")
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == checks
