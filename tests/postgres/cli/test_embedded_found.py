"""The command in a checkout whose embedded database runs, when no other one is configured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock.database import migrate
from resources.embedded import EmbeddedPostgres
from tests import command
from tests.command import Result
from tests.kit.proof import proves
from tests.support import FAST_SETTINGS

Run = Callable[..., Result]
ROOT = Path(__file__).resolve().parents[3]
PARTS = ("DB_TYPE", "DB_HOST", "DB_PORT", "DB_NAME", "DB_USER", "DB_PASSWORD")
SAID = "no database is configured: this is the embedded one, postgresql://127.0.0.1:"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder as a checkout is: with a running server below .penstock, and folders of its own."""
    root = tmp_path_factory.mktemp("checkout")
    (root / "docs" / "images").mkdir(parents=True)
    with EmbeddedPostgres(root / ".penstock" / "postgres", settings=FAST_SETTINGS) as server:
        migrate.migrate(server.url())
        yield root


@pytest.fixture
def run(checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in the checkout, with nothing configured."""
    for each in ("PENSTOCK_DATABASE_URL", "PENSTOCK_EMBEDDED_DIRECTORY", *PARTS):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.chdir(checkout)
    return partial(command.run, capsys)


@proves("the embedded database")
def test_it_is_found_and_named(run: Run, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the checkout and below it; without the password; for the time of the command."""
    for folder in (checkout, checkout / "docs" / "images"):
        monkeypatch.chdir(folder)
        found = run("status", "-o", "json")
        assert (found.code, found.json["schema"]) == (0, "penstock")
        assert found.err.startswith(SAID)
        assert str(checkout) in found.err
        assert (checkout / ".penstock/postgres/password").read_text().strip() not in found.err
    assert "PENSTOCK_DATABASE_URL" not in os.environ
    assert run("sequence").code == 0  # a command of the platform
    assert SAID not in run("status", "--help").err


@proves("the embedded database", guard="the order of the sources")
@pytest.mark.parametrize(
    "configured",
    [
        {"PENSTOCK_DATABASE_URL": "postgresql://me@127.0.0.1:1/other"},
        {"DB_NAME": "other", "DB_PORT": "1", "DB_HOST": "127.0.0.1"},
    ],
)
def test_what_is_configured_counts(
    run: Run, monkeypatch: pytest.MonkeyPatch, configured: dict[str, str]
) -> None:
    """Guard: is_configured; another database is never taken silently, nor when it is away."""
    for name, value in configured.items():
        monkeypatch.setenv(name, value)
    refused = run("status")
    assert refused.code == 3
    assert "127.0.0.1:1" in refused.err
    assert "embedded" not in refused.err


@proves("the embedded database", guard="the owner of the folder")
def test_one_of_somebody_else_is_not_taken(
    run: Run, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the owner of the folder; in /tmp anybody could lay one out for us."""
    owner = (checkout / ".penstock" / "postgres").stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    refused = run("status")
    assert (refused.code, "no database is configured. set" in refused.err) == (2, True)


def test_one_that_does_not_run_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when its process has died and left its file: guard _is_alive."""
    directory = tmp_path / "postgres"
    (directory / "data").mkdir(parents=True)
    (directory / "password").write_text("s3cret\n")
    monkeypatch.setenv("PENSTOCK_EMBEDDED_DIRECTORY", str(directory))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for lines in (None, f"{gone.pid}\n/data\n0\n5432\n", "nothing\n"):
        if lines is not None:
            (directory / "data" / "postmaster.pid").write_text(lines)
        refused = run("status")
        assert refused.code == 2
        assert "is not running. run: python -m resources.embedded start" in refused.err


@proves("a policy file owns what it has set")
def test_make_dev_says_where_it_is(checkout: Path) -> None:
    """The lines of tools.dev, before Dagster takes over.

    Guard: NO_POLICIES. Without it Dagster applies the file of this checkout to anybody's database.
    """
    script = "from tools import dev; dev._say_where_the_database_is(); "
    script += "from ops.policies.file import load; print(load().file); "
    script += "import os; print(os.environ.get('PENSTOCK_EMBEDDED'))"
    bare = {k: v for k, v in os.environ.items() if k not in {"PENSTOCK_DATABASE_URL", *PARTS}}
    directory = checkout / ".penstock" / "postgres"

    def said(**more: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env={**bare, **more},
            capture_output=True, text=True, check=True, timeout=120,
        ).stdout  # fmt: skip

    url = EmbeddedPostgres(directory).url()
    embedded = said(PENSTOCK_EMBEDDED_DIRECTORY=str(directory))
    assert f"export PENSTOCK_DATABASE_URL={url}" in embedded
    assert embedded.endswith("joined\n")
    own = {"PENSTOCK_DATABASE_URL": "postgresql://me:s3cret@db.example/shop"}
    assert said(**own).splitlines() == [
        "database: postgresql://db.example/shop",
        "policy file: none; name yours by PENSTOCK_POLICIES",
        "none",
        "None",
    ]
    mine = checkout / "mine.yaml"
    mine.write_text("name: mine")
    assert said(**own, PENSTOCK_POLICIES=str(mine)).splitlines()[1] == "mine"
