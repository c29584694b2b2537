"""What a release says of itself, and the page that says what of it is stable."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest
from hatchling.build import prepare_metadata_for_build_wheel

import penstock
from tests.kit.proof import proves
from tests.release.test_distributions import SMOKES
from tools import lock, public_names

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "stability.md").read_text("utf-8")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
#: What the tests of the sdist may import: its page says so.
WITH_THE_SDIST = {"penstock", "pytest", "hypothesis", "tests"}


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Message:
    """The metadata of the wheel, as its own backend makes it."""
    folder = tmp_path_factory.mktemp("metadata")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        made = prepare_metadata_for_build_wheel(str(folder))
    return HeaderParser().parsestr((folder / made / "METADATA").read_text("utf-8"))


@proves("a release is what it says")
def test_the_version_is_in_one_place(metadata: Message) -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert metadata["Version"] == penstock.__version__ == "0.1.0"


@proves("a release is what it says")
def test_license_and_classifiers(metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    told = metadata.get_all("Classifier") or []
    versions = [each.rpartition(" ")[2] for each in told if re.search(r":: 3\.\d+$", each)]
    assert versions == ["3.11", "3.12", "3.13"]
    assert metadata["Requires-Python"] == ">=3.11"


@proves("a release is what it says")
def test_the_page_names_every_extra(metadata: Message) -> None:
    """And the wheel offers none for what it does not have: brokers, the gateway, the tools."""
    table = PAGE.partition("| extra | for |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row[:60])}
    assert named - {"penstock"} == set(metadata.get_all("Provides-Extra") or [])


@proves("a release is what it says")
def test_each_extra_is_installed_in_a_long_test() -> None:
    assert SMOKES.keys() - {""} == PROJECT["project"]["optional-dependencies"].keys()


@proves("a release is what it says")
def test_the_page_names_everything_that_penstock_exports() -> None:
    names = re.findall(r"`(\w+)`", PAGE.partition("## Names of `penstock`")[2])
    assert len(names) == len(set(names))
    assert set(names) == set(penstock.__all__)


@proves("a release is what it says")
def test_no_public_name_changes_unseen() -> None:
    """Names, arguments, defaults, fields.  What goes or changes is a break: see the page."""
    listed = public_names.FILE.read_text("utf-8").splitlines()
    assert public_names.lines() == listed, "see it: python -m tools.public_names; git diff"


@proves("a release is what it says", guard="the list of public names")
def test_an_argument_that_changes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant of the code: an argument has another name, a class lacks a method, a name is gone."""

    def subscribe(connection: Any, name: str) -> None: ...

    monkeypatch.setattr(penstock, "subscribe", subscribe)
    monkeypatch.delattr(penstock.Consumer, "run_until_idle")
    monkeypatch.setattr(penstock, "__all__", [each for each in penstock.__all__ if each != "fetch"])
    listed = set(public_names.FILE.read_text("utf-8").splitlines())
    gone = {each.partition("(")[0] for each in listed - set(public_names.lines())}
    assert gone == {"penstock.subscribe", "penstock.Consumer.run_until_idle", "penstock.fetch"}


def pins(path: Path) -> set[str]:
    """Each package of a lock with its version, without extras and markers."""
    found = re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==([^\s;]+)", path.read_text(), re.MULTILINE)
    return {f"{name}=={version}" for name, version in found}


@proves("a release is what it says")
def test_the_locks_agree() -> None:
    """What an image has is what everything was tested with."""
    everything = pins(lock.LOCK)
    for name in ("service", "platform"):
        assert len(pins(lock.GROUPS[name])) > 60
        assert pins(lock.GROUPS[name]) <= everything
    assert pins(lock.GROUPS["service"]) < pins(lock.GROUPS["platform"])
    versions = dict(each.split("==") for each in everything)
    for each in pins(lock.GROUPS["release"]):
        name, version = each.split("==")
        assert versions.get(name, version) == version, name
    for path in lock.GROUPS.values():
        assert "://" not in path.read_text()


def sdist_tests() -> list[Path]:
    """The test files that the sdist has."""
    chosen = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]
    left_out = {ROOT / each.lstrip("/") for each in chosen["exclude"]}
    found: list[Path] = []
    for each in chosen["include"]:
        path = ROOT / each.lstrip("/")
        assert path.exists(), each
        if "tests" in path.parts[len(ROOT.parts) :]:
            found += sorted(path.glob("*.py")) if path.is_dir() else [path]
    return [each for each in found if each not in left_out]


def imported(path: Path) -> set[str]:
    """The packages that a file imports."""
    tree = ast.parse(path.read_text("utf-8"))
    names = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else
                     [each.name for each in node.names])
    }  # fmt: skip
    others = {name for name in names if name.startswith("tests.")}
    assert others <= {"tests.kit.proof", "tests.testing.conftest"}, path
    return {name.partition(".")[0] for name in names}


@proves("a release is what it says")
def test_the_tests_of_the_sdist_need_the_package_alone() -> None:
    found = sdist_tests()
    assert len(found) > 15
    for path in found:
        if path.name == "proof.py":  # imports a tool only where its option is given
            continue
        assert imported(path) - sys.stdlib_module_names <= WITH_THE_SDIST, path
