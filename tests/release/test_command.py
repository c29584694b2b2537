"""The command where only a part is installed: no extra, or somebody else's package of our name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.cli import commands, page
from tests.kit.proof import proves

#: As in an environment in which nothing but the wheel is installed.
BARE = """
import sys
for name in sys.argv.pop(1).split():
    sys.modules[name] = None
from penstock.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def bare(*arguments: str, without: str = "typer rich click") -> subprocess.CompletedProcess[str]:
    """The command without these packages, else those of its extra."""
    return subprocess.run(
        [sys.executable, "-c", BARE, without, *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@proves("a release is what it says")
def test_the_version_needs_no_extra() -> None:
    """It is what a report of a fault begins with.  Anything else names what is missing."""
    done = bare("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{penstock.__version__}\n", "")
    refused = bare("status")
    assert refused.returncode == 2
    assert "run: pip install 'typer' 'rich'" in refused.stderr


@proves("a release is what it says")
def test_a_command_that_lacks_a_package_says_which() -> None:
    """The image of the service has no Spark, and neither has it `make`."""
    refused = bare("archive", "shop/orders", without="pyspark")
    assert refused.returncode == 2
    assert refused.stderr.startswith("penstock: the Python package pyspark is not installed")
    assert "take the image of the platform" in refused.stderr


@pytest.fixture
def of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index has a package named `ops` that has nothing to do with this one."""
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "__init__.py").write_text("raise RuntimeError('it was imported')\n")
    for name in [each for each in sys.modules if each.partition(".")[0] == "ops"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    commands.load_registered.cache_clear()
    return tmp_path


@proves("a release is what it says")
def test_a_package_of_our_name_is_not_ours(of_somebody_else: Path) -> None:
    """Guard: `_is_ours` looks for the module.  The other package is not imported."""
    (told,) = re.findall(r"`make setup`: ([^.]*)\.", page.text())
    assert "relay" in told and "daemon" not in told
    entry = next(each for each in commands.registered() if each.name == "relay")
    assert not commands.is_here(entry)
    assert commands.load_registered(entry).is_missing
    said = str(commands.needs("ops"))
    assert f"the package ops in {of_somebody_else / 'ops'} is not Penstock's" in said
    assert "an environment without it" in said
    commands.load_registered.cache_clear()


@proves("a release is what it says", guard="`_is_ours`")
def test_without_the_guard_it_is_taken_for_ours(
    of_somebody_else: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_is_ours", lambda module: True)
    entry = next(each for each in commands.registered() if each.name == "relay")
    assert commands.is_here(entry)
    with pytest.raises(RuntimeError, match="it was imported"):
        commands.load_registered(entry)
