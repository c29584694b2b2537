"""The house: an application's imports stay light, and each house rule finds its fault."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from tools import check_house

ROOT = Path(__file__).resolve().parents[1]

LIGHT = textwrap.dedent(
    """
    import pkgutil, sys

    HEAVY = {"dagster", "pyspark", "pulsar", "deltalake", "pyarrow", "sqlalchemy"}
    HEAVY |= {"psycopg", "pymysql", "typer", "rich"}

    class Refuse:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in HEAVY:
                raise ImportError(f"{name} was imported")

    sys.meta_path.insert(0, Refuse())
    import penstock

    extras = ("penstock.cli", "penstock.archive", "penstock.dagster", "penstock.spark.")
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.startswith(extras):
            __import__(module.name)
    """
)


def test_penstock_imports_nothing_but_the_standard_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIGHT], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_core_has_no_required_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []


def test_comments_of_the_project_file_name_files_that_exist() -> None:
    """It says where the lock of each group of packages lies."""
    comments = re.findall(r"^ *#(.*)$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    named = re.findall(r"[\w.-]+/[\w./-]+\.(?:lock|md|py|toml)", "\n".join(comments))
    assert "tools/release.lock" in named
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_the_lock_has_hashes_and_no_address() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    pins = [line for line in lock.splitlines() if "==" in line]
    assert len(pins) > 100
    assert all(line.endswith("\\") for line in pins)
    assert "://" not in lock


@pytest.mark.long
def test_the_house_has_no_fault() -> None:
    """As `make check` says it."""
    assert list(check_house.check(ROOT, check_house.tracked(ROOT))) == []


MACHINE_PATH = "/ro" + "ot/file"
REGISTRY = "py" + "pi.org"


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("docs/a.md", f"see {MACHINE_PATH}", "a path of one machine"),
        ("a.toml", f"index = {REGISTRY}", "the address of a registry"),
        ("docs/a.md", "word " * 21, "105 characters, more than 100"),
        ("docs/a.md", f"```\nx = 1\n```\n[{'word ' * 25}](b.md)", "docs/a.md:4: 127 characters"),
        ("sql/a.sql", "-- name: one\n-- Why.\n" + "<" * 7 + " HEAD\n", "a merge was not finished"),
        ("docs/a.md", "one\n" + "=" * 7 + "\ntwo\n", "docs/a.md:2: a merge was not finished"),
        ("uv.lock", "", "uv.lock names registries"),
        ("a.py", "x = 1\n" * 501, "the file has 501 lines"),
        ("a.py", "def f():\n" + "    x = 1\n" * 70, "function f has 71 lines"),
        ("a.py", "async def f():\n" + "    x = 1\n" * 70, "function f has 71 lines"),
        ("sql/a.sql", "SELECT 1;", "SQL before the first"),
        ("sql/a.sql", "-- name: one\nSELECT 1;", "has no comment"),
        ("sql/a.sql", "-- name: one\n-- Why.\n", "is empty"),
        ("sql/a.sql", "-- name: one\n-- Why.\nSELECT 1;\n" * 2, "two blocks one"),
        ("sql/postgres/migrations/0001_a.sql", "SELECT 1;", "no comment that explains"),
        ("pyproject.toml", "[tool.dagster]\nmodule_name = 'a'", "switches workspace.yaml off"),
        ("pyproject.toml", "[tool.dg]\ndirectory_type = 'a'", "switches workspace.yaml off"),
    ],
)
def test_each_rule_finds_its_fault(tmp_path: Path, name: str, text: str, fault: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert any(fault in each for each in check_house.check(tmp_path, [path]))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("docs/a.md", "a relative homework/home/file, ~/work/x and an address /v1/home"),
        ("docs/a.md", f"```\n{'x' * 101}\n```\n| {'x' * 101} |\n- [a page](b.md#{'x' * 101})\n"),
        ("a.py", "def f():\n" + "    x = 1\n" * 69),
        ("sql/a.sql", "-- name: one\n-- Why.\nSELECT 1;\n"),
        ("picture.png", b"\x89PNG\xff\xfe"),
    ],
)
def test_no_rule_finds_a_fault_where_none_is(tmp_path: Path, name: str, text: str | bytes) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert list(check_house.check(tmp_path, [path])) == []
