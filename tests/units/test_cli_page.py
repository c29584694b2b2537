"""`penstock doctor --checks` lists every check of the doctor, and nothing else.

And `penstock --help` looks like the pages of its sub-commands, which Typer makes.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
import typer
from typer import rich_utils
from typer.core import TyperCommand, TyperGroup

from penstock import doctor
from penstock.cli import commands as names, page
from penstock.cli.main import run
from penstock.cli.root import root
from penstock.doctor import mysql_settings, postgres_settings
from penstock.doctor.checks import CHECKS


def test_every_check_of_the_doctor_is_listed() -> None:
    """In `penstock doctor --checks`, and so in docs/reference/cli.md."""
    folder = Path(doctor.__file__).parent
    texts = "".join(each.read_text("utf-8") for each in folder.glob("*.py"))
    checks = set(re.findall(r'\b(?:error|warning)\(\s*"(\w+)"', texts))
    checks |= {rule.check for rule in postgres_settings.RULES.values()}
    checks |= {rule.check for rule in mysql_settings.RULES.values()}
    assert set(CHECKS) == checks


def test_the_command_lists_the_checks(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a database."""
    assert run(["doctor", "--checks", "--output", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {each["check"] for each in listed} == set(CHECKS)
    assert all(each["found_when"] for each in listed)


class ByTyper(TyperGroup):
    """The root command, whose page Typer makes of the same names and texts."""

    def list_commands(self, ctx: object) -> list[str]:
        return [*names.OWN, *(each.name for each in names.registered() if names.is_here(each))]

    def get_command(self, ctx: object, cmd_name: str) -> TyperCommand:
        known = {name: about for name, (_, about) in names.OWN.items()} | names.OF_THE_PLATFORM
        return TyperCommand(name=cmd_name, help=known[cmd_name])


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


@pytest.mark.parametrize("width", [50, 57, 80, 100, 213])
@pytest.mark.parametrize("is_installed", [True, False])
def test_the_page_of_all_commands_is_as_typer_would_make_it(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    width: int,
    is_installed: bool,
) -> None:
    """At every width, with and without the commands of a checkout."""
    if not is_installed:
        monkeypatch.setattr(names, "find_spec", lambda name: None)
    monkeypatch.setattr(rich_utils, "MAX_WIDTH", width)
    monkeypatch.setenv("TERMINAL_WIDTH", str(width))
    group = typer.main.get_command(root)
    epilog = "In a checkout of Penstock, after `make setup`: " + ", ".join(
        each.name for each in names.registered() if not names.is_here(each)
    )
    made = ByTyper(
        name="penstock", help=group.help, params=group.params,
        epilog=None if is_installed else f"{epilog}.",
    )  # fmt: skip
    made.format_help(typer.Context(made, info_name="penstock"), None)  # type: ignore[arg-type]
    assert lines(page.text()) == lines(capsys.readouterr().out)


def test_a_page_for_a_stream_without_lines_is_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert page.text().isascii()
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1;36mmigrate" in page.text()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in page.text()
