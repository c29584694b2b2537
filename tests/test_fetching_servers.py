"""Fetching servers: once, also when several ask at once, and with a hint where it is impossible."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import servers
from tools.servers import MARIADB, MYSQL, ServerUnavailable, catalogue, matrix, postgres_matrix

ROOT = Path(__file__).resolve().parents[1]
ASKERS = 3

# Stands for apt-get: writes down that it was asked, and waits until every asker is there.
APT_GET = """\
#!{python}
import pathlib, sys, time
folder = pathlib.Path("{folder}")
if "update" in sys.argv:
    with (folder / "asked").open("a") as asked:
        asked.write("once\\n")
    deadline = time.monotonic() + 60
    while len(list(folder.glob("here-*"))) < {askers} and time.monotonic() < deadline:
        time.sleep(0.01)
else:
    cache = next(each for each in sys.argv if each.startswith("Dir::Cache="))
    (pathlib.Path(cache.partition("=")[2]) / "archives" / "server.deb").touch()
"""

DPKG_DEB = """\
#!{python}
import pathlib, sys
(pathlib.Path(sys.argv[3]) / "usr").mkdir()
"""

# Stands for Maven: a jar with a packed tree of programs.
MAVEN = """\
#!{python}
import io, pathlib, sys, tarfile, time, zipfile
folder = pathlib.Path("{folder}")
with (folder / "asked").open("a") as asked:
    asked.write("once\\n")
deadline = time.monotonic() + 60
while len(list(folder.glob("here-*"))) < {askers} and time.monotonic() < deadline:
    time.sleep(0.01)
target = next(each for each in sys.argv if each.startswith("-DoutputDirectory="))
output = pathlib.Path(target.partition("=")[2])
output.mkdir()
packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode="w:xz") as tree:
    tree.add(folder / "bin", "bin")
with zipfile.ZipFile(output / "postgres.jar", "w") as jar:
    jar.writestr("postgres.txz", packed.getvalue())
"""

ASKER = """\
import pathlib, sys
from tools import debian
from tools.servers import MYSQL, postgres_matrix
folder = pathlib.Path(sys.argv[1])
debian.APT = folder / "apt"
(folder / f"here-{sys.argv[2]}").touch()
home = folder / "home"
print(MYSQL.root(home) if sys.argv[3] == "mysql" else postgres_matrix.bin_dir(14, home))
"""


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.format(python=sys.executable, folder=folder.parent, askers=ASKERS))
    path.chmod(0o755)


def ask_at_once(folder: Path, what: str) -> set[str]:
    """What several processes get that ask for the same at the same time."""
    environment = {
        **os.environ,
        "PATH": f"{folder / 'programs'}{os.pathsep}{os.environ['PATH']}",
        "MAVEN": str(folder / "programs" / "mvn"),
    }
    askers = [
        subprocess.Popen(
            [sys.executable, "-c", ASKER, str(folder), str(number), what],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True,
        )
        for number in range(ASKERS)
    ]  # fmt: skip
    answers = {asker.communicate(timeout=60)[0].strip() for asker in askers}
    assert [asker.returncode for asker in askers] == [0] * ASKERS
    return answers


def test_processes_that_ask_at_once_unpack_one_time(tmp_path: Path) -> None:
    program(tmp_path / "programs", "apt-get", APT_GET)
    program(tmp_path / "programs", "dpkg-deb", DPKG_DEB)
    (tmp_path / "apt").mkdir()
    (tmp_path / "apt" / "sources.list").write_text("deb http://archive.example/debian stable main")
    assert ask_at_once(tmp_path, "mysql") == {str(tmp_path / "home" / "mysql")}
    assert (tmp_path / "asked").read_text().splitlines() == ["once"]


@pytest.mark.usefixtures("java_home")
def test_processes_that_ask_at_once_ask_maven_one_time(tmp_path: Path) -> None:
    program(tmp_path / "programs", "mvn", MAVEN)
    program(tmp_path / "bin", "postgres", "#!/bin/sh\necho 'postgres (PostgreSQL) 14.99'\n")
    home = tmp_path / "home"
    assert ask_at_once(tmp_path, "postgres-14") == {str(home / "postgres-14" / "bin")}
    assert (tmp_path / "asked").read_text().splitlines() == ["once"]
    assert postgres_matrix.fetched(14, home)
    assert postgres_matrix.version(14, home) == "14.99"


def test_half_a_tree_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy_jars(pom: Path, folder: Path, properties: dict[str, str]) -> None:
        raise ServerUnavailable("asked again")

    monkeypatch.setattr(postgres_matrix, "copy_jars", copy_jars)
    (tmp_path / "postgres-14" / "bin").mkdir(parents=True)
    with pytest.raises(ServerUnavailable, match="asked again"):
        postgres_matrix.bin_dir(14, tmp_path)
    assert not (tmp_path / "postgres-14").exists()


def test_without_debian_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerUnavailable, match="PENSTOCK_TEST_MYSQL_URL") as raised:
        MYSQL.template(tmp_path / "home")
    assert "apt-get is not installed" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_version_outside_the_matrix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailable, match="14, 15, 16, 17"):
        postgres_matrix.bin_dir(9, tmp_path)


@pytest.mark.parametrize("name", catalogue.GROUPS["matrix"])
def test_each_run_of_the_matrix_is_about_one_version(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("POSTGRES", "MYSQL", "MARIADB"):
        monkeypatch.delenv(f"PENSTOCK_TEST_{variable}_URL", raising=False)
    for variable, value in matrix.environment(name).items():
        monkeypatch.setenv(variable, value)
    database = name.partition("-")[0]
    assert servers.chosen() == (database,)
    if database == "postgres":
        assert f"postgres-{servers._major()}" == name
    else:
        assert servers._distribution(database).name == name


@pytest.mark.parametrize(
    ("body", "good"),
    [
        ("assert True", True),
        pytest.param("assert False", False, marks=pytest.mark.long),
        ("pytest.skip()", False),
    ],
)
def test_a_run_of_the_matrix_is_good_when_something_passed(
    tmp_path: Path, body: str, good: bool
) -> None:
    (tmp_path / "test_it.py").write_text(f"import pytest\ndef test_it():\n    {body}\n")
    own = ["--rootdir", str(tmp_path), "-c", os.devnull, "-p", "no:cacheprovider"]
    said, answer = matrix.run_tests("mariadb-10.11", "10.11", [*own, str(tmp_path)])
    assert answer is good, said


def test_without_a_choice_a_run_is_about_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("DATABASES", "POSTGRES_MAJOR", "MARIADB_VERSION"):
        monkeypatch.delenv(f"PENSTOCK_TEST_{variable}", raising=False)
    assert servers.chosen() == servers.DATABASES
    assert servers._major() is None
    assert servers._distribution("mysql") is MYSQL
    assert servers._distribution("mariadb") is MARIADB


def test_a_database_that_nobody_knows_cannot_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_DATABASES", "oracle")
    with pytest.raises(pytest.UsageError, match="oracle"):
        servers.chosen()
