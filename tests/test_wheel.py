"""The wheel is enough for an application team: install, migrate, publish, without the platform."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import urllib.request
import venv
import zipfile
from pathlib import Path

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.consumers.process import until
from tests.kit.proof import proves

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


def without_checkout() -> dict[str, str]:
    """The environment; a session of Spark here has put the checkout on PYTHONPATH for workers."""
    return {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=without_checkout()
    )
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
    event_id = run(str(clean_python), "-I", "-c", PUBLISH, empty_database_url, cwd=tmp_path).strip()
    with psycopg.connect(empty_database_url) as connection:
        rows = connection.execute("SELECT event_id::text, key FROM penstock.events").fetchall()
    assert rows == [(event_id, "o-1")]


class Upkeep:
    """``penstock upkeep`` of the clean environment, and what its log and its pages say."""

    def __init__(self, command: Path, environment: dict[str, str], folder: Path) -> None:
        self.output = folder / "upkeep.log"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [str(command), "upkeep"], env=environment, cwd=folder, stdout=output, stderr=output
            )

    def port(self) -> int | None:
        """The port that its log names, once it does."""
        assert self.process.poll() is None, self.output.read_text()
        found = re.search(r'"http_port": (\d+)', self.output.read_text())
        return int(found[1]) if found else None

    def page(self, path: str) -> str:
        """One of its pages, which has to be there."""
        address = f"http://127.0.0.1:{self.port()}{path}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            return str(answer.read().decode())


@proves("advice can be followed")
def test_a_small_installation_needs_nothing_but_the_wheel(
    clean_python: Path, empty_database_url: str, tmp_path: Path
) -> None:
    """Publish, let the upkeep sequence it, consume; /readyz and /metrics; a doctor that is content.

    Before the upkeep runs, what the doctor tells to run is a command of the wheel.
    """
    command = clean_python.parent / "penstock"
    environment = {"PENSTOCK_DATABASE_URL": empty_database_url, "PATH": str(clean_python.parent)}

    def penstock(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [str(command), *arguments], env=environment, cwd=tmp_path, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout

    penstock("migrate")
    penstock("namespace", "create", "shop")
    penstock("topic", "create", "shop/orders")
    penstock("subscription", "create", "billing", "--topic", "shop/orders")
    penstock("publish", "shop/orders", "first")
    found = penstock("doctor", "--waiting-age", "0", code=1)
    (told,) = [line for line in found.splitlines() if "error: sequencer:" in line]
    assert told.endswith("run: penstock sequence  # once; all the time: penstock upkeep")
    upkeep = Upkeep(command, environment, tmp_path)
    try:
        until(upkeep.port, "the upkeep names its port")
        until(lambda: "first" in penstock("fetch", "shop/orders", "--partition", "0"), "an event")
        lines = penstock("consume", "billing", "--commit", "--until-idle")
        assert "first" in lines
        assert upkeep.page("/readyz") == "ok\n"
        assert upkeep.page("/livez") == "ok\n"
        families = {each.name: each for each in text_string_to_metric_families(
            upkeep.page("/metrics")
        )}  # fmt: skip
        (sequenced,) = families["penstock_sequenced_events"].samples
        assert (sequenced.labels, sequenced.value) == ({"worker": "sequencer"}, 1)
        assert {"penstock_database_up", "penstock_lag_events"} <= families.keys()
        penstock("publish", "shop/orders", "second")
        penstock("sequence")
        penstock("sweep")
        # The tests' server does not sync: that is all it finds.
        assert "sequence" not in penstock("doctor", code=1)
    finally:
        upkeep.process.terminate()
        assert upkeep.process.wait(30) == 0


def test_the_help_lists_what_can_be_run(clean_python: Path, tmp_path: Path) -> None:
    """The commands of a checkout are one line that says how to get them."""
    command = str(clean_python.parent / "penstock")
    page = run(command, "--help", cwd=tmp_path)
    assert "Not installed" not in page
    flat = " ".join(page.split())
    verbs = (
        "archive, audit, backfill, clean, daemon, duty, erase, erasures, gateway, policy, relay,"
        " rollup, seal, target, verify"
    )
    assert f"`make setup`: {verbs}." in flat
    listed = set(re.findall(r"^│ ([a-z][a-z-]+)  ", page, re.MULTILINE))
    assert {"migrate", "publish", "worker", "upkeep", "sequence", "sweep", "restore"} <= listed
    assert listed.isdisjoint({"archive", "daemon", "relay"})
    for name in ("upkeep", "sequence", "sweep", "restore"):
        run(command, name, "--help", cwd=tmp_path)
    refused = subprocess.run(
        [command, "daemon"], capture_output=True, text=True, check=False, cwd=tmp_path,
        env=without_checkout(),
    )  # fmt: skip
    assert refused.returncode == 2
    assert "run it in a checkout of Penstock, where `make setup` installs the platform" in (
        refused.stderr
    )
