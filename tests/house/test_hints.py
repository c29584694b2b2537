"""Every command that errors, findings and pages suggest exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from penstock.cli.commands import OF_THE_PLATFORM, OWN
from tests.kit.proof import proves

ROOT = Path(__file__).resolve().parents[2]
#: No package of ours is on an index: a stranger could take the name.
FROM_AN_INDEX = re.compile(r"pip install [^\n`.]*\bpenstock\b")
COMMAND = re.compile(r"""(?:["'`]|: |, |\b(?:run|or|start) )penstock ([a-z][a-z-]+)""")

#: What the wheel says of the platform's commands: what must not be done to it from elsewhere, and
#: what makes the copies again that a reader lacks, or lets a topic's limit in bytes be kept.
OF_ELSEWHERE = {"backfill", "clean", "policy", "target"}


def told(*folders: str) -> dict[str, str]:
    """The text of what is tracked there, by name."""
    done = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = [name for name in done.stdout.splitlines() if name.endswith((".py", ".sql", ".md"))]
    return {name: (ROOT / name).read_text("utf-8") for name in names if (ROOT / name).exists()}


@proves("advice can be followed")
def test_nobody_is_sent_to_an_index_for_our_name() -> None:
    texts = told(
        "penstock", "ops", "consumers", "resources", "dagster_project", "sql", "docs", "examples",
        "README.md",
    )  # fmt: skip
    assert len(texts) > 200
    assert [name for name, text in texts.items() if FROM_AN_INDEX.search(text)] == []
    assert FROM_AN_INDEX.search("run: pip install 'penstock[mysql]'")
    assert FROM_AN_INDEX.search("pip install --upgrade penstock")
    assert not FROM_AN_INDEX.search("`pip install '.[postgres,cli]'` brings penstock")


@proves("advice can be followed")
def test_the_wheel_names_commands_that_it_has() -> None:
    """Its errors, its findings, and what the functions in the database say."""
    named = {
        (name, command)
        for name, text in told("penstock", "sql").items()
        for line in text.splitlines()
        if "application_name" not in line
        for command in COMMAND.findall(line)
    }
    assert {"migrate", "upkeep", "sequence", "restore"} <= {command for _, command in named}
    assert COMMAND.findall("all the time: penstock daemon --roles sequencer") == ["daemon"]
    elsewhere = {each for each in named if each[1] not in OWN}
    assert {command for _, command in elsewhere} == OF_ELSEWHERE
    assert OF_THE_PLATFORM.keys() >= OF_ELSEWHERE
