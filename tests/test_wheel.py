"""The wheel is enough for an application team: install, migrate, publish, without the platform."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import venv
import zipfile
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(300)]

PUBLISH = textwrap.dedent(
    """
    import importlib.util
    import sys

    for name in ("dagster", "pyspark", "ops", "consumers", "resources", "dagster_project"):
        assert importlib.util.find_spec(name) is None, name

    import psycopg
    from penstock import create_namespace, create_topic, publish

    with psycopg.connect(sys.argv[1]) as connection:
        create_namespace(connection, "shop")
        create_topic(connection, "shop/orders", partitions=2)
        connection.commit()
        print(publish(connection, "shop/orders", b"{}", key="o-1", type="order.placed"))
    """
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    target = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(target), str(ROOT))
    return next(target.glob("penstock-*.whl"))


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a clean environment with the wheel and the extras postgres and cli."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home)
    python = home / "bin" / "python"
    constraints = home / "constraints.txt"
    constraints.write_text(pins())
    run(
        sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile",
        "--disable-pip-version-check", "-c", str(constraints), f"{wheel}[postgres,cli]",
    )  # fmt: skip
    return python


def pins() -> str:
    """The lock without its hashes: the versions that everything else is tested with."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    wanted = (line.rstrip(" \\") for line in lines if "==" in line)
    return "\n".join(line for line in wanted if "[" not in line.partition("==")[0])


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_wheel_holds_penstock_and_its_sql_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    folders = {name.partition("/")[0] for name in names}
    assert folders == {"penstock", next(f for f in folders if f.endswith(".dist-info"))}
    packed = {name.removeprefix("penstock/") for name in names if name.endswith(".sql")}
    assert packed == {str(path.relative_to(ROOT)) for path in ROOT.glob("sql/**/*.sql")}


def test_an_application_migrates_and_publishes_with_the_wheel_alone(
    clean_python: Path, empty_database_url: str, tmp_path: Path
) -> None:
    command = clean_python.parent / "penstock"
    environment = {"PENSTOCK_DATABASE_URL": empty_database_url, "PATH": str(clean_python.parent)}
    done = subprocess.run(
        [str(command), "migrate"], env=environment, cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # -I: a session of Spark in this process has put the checkout on PYTHONPATH for its workers.
    event_id = run(str(clean_python), "-I", "-c", PUBLISH, empty_database_url, cwd=tmp_path).strip()
    with psycopg.connect(empty_database_url) as connection:
        rows = connection.execute("SELECT event_id::text, key FROM penstock.events").fetchall()
    assert rows == [(event_id, "o-1")]
