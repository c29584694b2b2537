"""The command: what it prints, and its exit codes."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

import penstock
from penstock.cli import commands
from penstock.database import catalog, migrate
from tests import command
from tests.command import Result

Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process."""
    # So that what `--schema` sets is taken back after the test.
    monkeypatch.setenv("PENSTOCK_SCHEMA", "penstock")

    return partial(command.run, capsys)


@pytest.fixture
def migrated(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", database_url)
    return database_url


@pytest.fixture
def empty(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", empty_database_url)
    return empty_database_url


def test_migrate_checks_installs_and_tells(run: Run, empty: str) -> None:
    checked = run("migrate", "--check", "--output", "json")
    assert (checked.code, {line["state"] for line in checked.json}) == (1, {"pending"})
    assert run("status").code == 3
    installed = run("migrate", "--output", "json")
    assert (installed.code, installed.json["schema"]) == (0, "penstock")
    assert len(installed.json["applied"]) == len(catalog.migrations("postgres")) + 1
    assert run("migrate", "--check").code == 0
    listed = run("migrate", "--status", "--output", "json")
    assert {line["state"] for line in listed.json} == {"applied"}
    assert listed.json[0]["applied_at"]
    assert "applied" in run("migrate", "--status").out
    assert "up to date" in run("status").err


def test_migrate_prints_only_sql(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_DATABASE_URL", raising=False)
    printed = run("migrate", "--print", "--schema", "outbox")
    assert (printed.code, printed.out, printed.err) == (0, migrate.print_sql("outbox"), "")


def test_migrate_into_another_schema(run: Run, empty: str) -> None:
    assert run("migrate", "--schema", "outbox").code == 0
    with psycopg.connect(empty) as connection:
        names = connection.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname IN ('outbox', 'penstock')"
        ).fetchall()
    assert names == [("outbox",)]
    assert run("namespace", "list").code == 3
    assert run("--schema", "outbox", "namespace", "create", "a").code == 0
    assert run("--schema", "outbox", "namespace", "list", "-o", "json").json[0]["path"] == "a"


def test_names_are_created_listed_and_described(run: Run, migrated: str) -> None:
    assert run("namespace", "create", "bank").code == 0
    assert run("topic", "create", "bank/accounts", "--partitions", "2").code == 0
    assert run("topic", "create", "shop/orders/new", "-p").code == 0
    assert [n["path"] for n in run("namespace", "list", "-o", "json").json] == [
        "bank",
        "shop",
        "shop/orders",
    ]
    assert run("topic", "list", "bank", "-o", "json").json[0]["partitions"] == 2
    described = run("topic", "describe", "bank/accounts", "-o", "json").json
    assert [line["high_watermark"] for line in described["partitions"]] == [0, 0]
    assert (described["strategy"], described["subscriptions"]) == ("crc32", 0)
    assert "crc32" in run("topic", "describe", "bank/accounts").out
    assert "bank/accounts" in run("topic", "list").out


def test_an_event_is_published_and_fetched(run: Run, migrated: str, tmp_path: Path) -> None:
    run("topic", "create", "bank/accounts", "-p")
    file = tmp_path / "payload"
    file.write_bytes(b"\xff\x00")
    first = run(
        "publish", "bank/accounts", "hällo", "--key", "7", "--header", "n=1", "--header", "t=x=y"
    )
    assert first.code == 0
    assert run("publish", "bank/accounts", "--file", str(file)).code == 0
    with psycopg.connect(migrated, autocommit=True) as connection:
        connection.execute("SELECT penstock.sequence(1000)")
    fetched = run("fetch", "bank/accounts", "-o", "json").json
    assert fetched[0]["event_id"] == first.out.strip()
    assert fetched[0]["headers"] == {"n": 1, "t": "x=y"}
    assert (fetched[0]["payload"], fetched[1]["payload_base64"]) == ("hällo", "/wA=")
    assert "hällo" in run("fetch", "bank/accounts").out
    status = run("status", "-o", "json").json
    assert (status["pending"], status["topics"][0]["address"]) == ([], "bank/accounts")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["publish", "bank/nothing", "x"], 2, "there is no topic 'bank/nothing'. create it"),
        (["publish", "nothing", "x"], 2, "has no namespace"),
        (["publish", "bank/a"], 2, "needs one payload"),
        (["publish", "bank/a", "x", "--header", "broken"], 2, "name=value"),
        (["publish", "bank/a", "--file", "no/such/file"], 2, "cannot read"),
        (["topic", "create", "bank/a"], 2, 'no namespace "bank"'),
        (["topic", "create", "bank/a", "--partitions", "0"], 2, "0 partitions"),
        (["namespace", "create", "a//b"], 2, "empty name"),
        (["--schema", "public", "status"], 2, "cannot be the name"),
        (["migrate", "--print", "--check"], 2, "exclude each other"),
        (["nothing"], 2, "nothing"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(
    run: Run, migrated: str, arguments: list[str], code: int, said: str
) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (code, "")
    assert said in " ".join(result.err.split())
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("postgresql://teller:s3cret@127.0.0.1:1/bank", 3, "cannot connect to"),
        ("", 2, "no database is configured"),
        ("mysql://teller:s3cret@127.0.0.1:1/bank", 3, "cannot connect to"),
    ],
)
def test_a_missing_database_is_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, url: str, code: int, said: str
) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", url)
    for part in ("DB_TYPE", "DB_HOST", "DB_PORT", "DB_NAME", "DB_USER", "DB_PASSWORD"):
        monkeypatch.delenv(part, raising=False)
    result = run("topic", "list")
    assert (result.code, result.out, result.err.count("\n")) == (code, "", 1)
    assert said in result.err
    assert "s3cret" not in result.err


def test_help_and_version(run: Run) -> None:
    assert run("--version").out.strip() == penstock.__version__
    assert "migrate" in run("--help").out
    assert run("topic", "--help").code == 0


def test_the_version_is_the_one_of_the_distribution() -> None:
    assert importlib.metadata.version("penstock") == penstock.__version__


class Entry:
    """An entry point whose module is as a test wants it."""

    def __init__(self, name: str, found: Any) -> None:
        self.name = name
        self.module = f"ops.{name}"
        self._found = found

    def load(self) -> Any:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def register(patch: pytest.MonkeyPatch, *entries: Entry) -> None:
    """Only these are registered, for a command that is made now."""
    patch.setattr(commands, "entry_points", lambda group: entries)


def test_a_command_of_the_platform_runs(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def mirror(topic: str) -> None:
        """Mirror a topic."""
        seen.append(topic)

    register(monkeypatch, Entry("mirror", mirror))
    assert "Mirror a topic." in run("--help").out
    assert run("mirror", "bank/accounts").code == 0
    assert seen == ["bank/accounts"]


@pytest.mark.parametrize(
    ("name", "module", "remedy"),
    [
        ("relay", "ops", "checkout of Penstock"),
        ("more", "ops.more", "checkout of Penstock"),
        ("more", "pyspark", "run `make setup` in the checkout"),
    ],
)
def test_a_command_whose_platform_is_missing_is_one_line_of_help(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, module: str, remedy: str
) -> None:
    """A call of it says what to do."""
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    register(monkeypatch, Entry(name, ModuleNotFoundError("no", name=module)))
    shown = run("--help").out
    assert shown.count(name) == 1
    assert f"In a checkout of Penstock, after `make setup`: {name}." in " ".join(shown.split())
    assert "Not installed" not in shown
    for arguments in ([], ["bank/accounts", "--sink", "file"], ["--help"]):
        result = run(name, *arguments)
        said = " ".join((result.out + result.err).split())
        assert remedy in said
        assert result.code == (0 if "--help" in arguments else 2)


@pytest.mark.parametrize("error", [psycopg.OperationalError("gone"), pymysql.OperationalError(1)])
def test_what_a_driver_says_is_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The database ended a session under a command, say."""

    def broken() -> None:
        """Fail."""
        raise error

    register(monkeypatch, Entry("broken", broken))
    result = run("broken")
    assert (result.code, result.err.count("\n")) == (3, 1)
    assert "the database refused" in result.err


def test_the_page_of_commands_says_what_each_command_says() -> None:
    """It loads none of them, so it has their first sentences written down."""
    for name, (_, about) in commands.OWN.items():
        assert first_paragraph(commands.load(name)) == about
    entries = {each.name: each for each in importlib.metadata.entry_points(group=commands.GROUP)}
    for name, about in commands.OF_THE_PLATFORM.items():
        assert first_paragraph(commands.load_registered(entries[name])) == about


def first_paragraph(command: Any) -> str:
    return " ".join(str(command.help).split("\n\n")[0].split())


def loaded_by(program: str) -> set[str]:
    """What a process has imported that calls the command so."""
    shown = "import sys; print(list(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"from penstock.cli import main, page; {program}; {shown}"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "Publish one event" in done.stdout
    return set(ast.literal_eval(done.stderr.strip()))


@pytest.mark.parametrize("given", [[], ["--help"]])
def test_the_page_of_commands_loads_neither_typer_nor_any_of_them(given: list[str]) -> None:
    """Guard: `page.is_asked_for`.  With Typer and rich, the page takes three times as long."""
    loaded = loaded_by(f"main.run({given})")
    assert loaded.isdisjoint({"typer", "rich", "click", "asyncio"})
    of_the_page = {"main", "exit_codes", "page", "commands", "collector"}
    assert {m for m in loaded if m.startswith(("penstock.", "ops", "consumers"))} == {
        "penstock.errors", "penstock.driver_errors", "penstock.cli",
        *(f"penstock.cli.{each}" for each in of_the_page)
    }  # fmt: skip
    assert "typer" in loaded_by(f"page.is_asked_for = lambda given: False; main.run({given})")


def test_the_entry_points_of_this_project_load_or_say_what_is_missing() -> None:
    for entry in importlib.metadata.entry_points(group=commands.GROUP):
        assert commands.load_registered(entry) is not None


def test_importing_penstock_needs_only_the_standard_library() -> None:
    code = (
        "import sys; import penstock; "
        "print([m for m in ('psycopg', 'sqlalchemy', 'typer', 'rich') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_sorted_and_exist() -> None:
    assert penstock.__all__ == sorted(penstock.__all__)
    for name in penstock.__all__:
        assert getattr(penstock, name).__doc__, name
