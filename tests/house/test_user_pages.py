"""The pages for users: twelve, short; and the commands of all pages exist."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path
from typing import Any

import typer

from penstock.cli.commands import OWN
from penstock.cli.root import root

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(path for path in DOCS.glob("*.md") if path.name != "README.md")
#: Only through a gateway.
OF_THE_GATEWAY = {("queue", "receive"), ("queue", "acknowledge")}
#: Here the words of a call end.
OF_THE_SHELL = {"--", ">", "|", "&", "&&", ";"}
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_twelve_pages_of_150_lines() -> None:
    lines = {page.name: len(page.read_text("utf-8").splitlines()) for page in PAGES}
    assert len(lines) <= 12
    assert {name: count for name, count in lines.items() if count > 150} == {}


def test_the_index_names_each_page() -> None:
    index = (DOCS / "README.md").read_text("utf-8")
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"README.md"}
    decisions = {page for page in pages if page.startswith("evidence/decisions/")}
    assert sorted(page for page in pages - decisions if f"({page})" not in index) == []


def commands() -> list[tuple[str, list[str]]]:
    """Each call of penstock in a block of any page, as words."""
    found = []
    for page in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]:
        for block in FENCE.findall(page.read_text("utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith(("penstock ", "$ penstock ")):
                    words = shlex.split(line.removeprefix("$ "), comments=True)
                    found.append((page.name, words[1:]))
    return found


def faults(words: list[str]) -> list[str]:
    """The sub-commands, options and arguments of a call that the command line does not know."""
    command: Any = typer.main.get_command(root)
    words = list(takewhile(lambda word: word not in OF_THE_SHELL, words))
    while words and hasattr(command, "get_command"):
        context = typer.Context(command)
        inner = command.get_command(context, words[0])
        words = words if inner is None else words[1:]
        command = inner or command.get_command(context, "send")  # `penstock relay NAME SINK`
        if command is None:
            return words[:1]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    unknown = [word for word in words if word.startswith("-") and word not in known]
    return unknown or command.make_parser(typer.Context(command)).parse_args(list(words))[1]


def test_the_commands_of_the_pages_exist() -> None:
    found = commands()
    assert len(found) > 150
    ours = [(page, words) for page, words in found if tuple(words[:2]) not in OF_THE_GATEWAY]
    assert [(page, wrong, words) for page, words in ours if (wrong := faults(words))] == []
    assert {words[0] for _, words in found} >= {"publish", "relay", "account", "migrate"} & set(OWN)


def test_a_command_that_is_not_there_is_found() -> None:
    assert faults(["publsh"]) == ["publsh"]
    assert faults(["topic", "create", "a/b", "--partition", "3"]) == ["--partition"]
    assert faults(["erase", "a/b", "--key", "Ada"]) == ["a/b"]
