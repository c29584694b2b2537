"""The sdist and the wheel: built, checked, and each extra installed in an empty environment.

`make test-long ARGS=tests/release/test_distributions.py`.  The wheel's daily form is
`tests/test_wheel.py`.
"""

from __future__ import annotations

import subprocess
import textwrap
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from tests.kit.proof import proves
from tests.servers import MySQLTestServer
from tests.support import missing
from tests.test_wheel import pins, without_checkout
from tools import release

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

PUBLISHES = """
    import penstock

    penstock.migrate.migrate(url)
    with penstock.connect(url) as connection:
        penstock.create_namespace(connection, "shop")
        penstock.create_topic(connection, "shop/orders", partitions=1)
        connection.commit()
        penstock.publish(connection, "shop/orders", b"{}", key="o-1")
        connection.commit()
        penstock.sequence(connection)
        (event,) = penstock.fetch(connection, "shop/orders", 0, 1)
        assert event.key == "o-1"
"""
#: What is done where each extra is installed, and with which others.
SMOKES: dict[str, tuple[str, str]] = {
    "": (
        "",
        """
        import penstock, penstock.http, penstock.testing

        penstock.preload()
        try:
            penstock.connect(url)
        except penstock.MissingExtra as error:
            assert "run: pip install 'psycopg[binary]'" in str(error)
        else:
            raise AssertionError("it has a driver")
        """,
    ),
    "postgres": ("", PUBLISHES),
    "mysql": ("", PUBLISHES),
    "cli": ("", "import penstock.cli.root"),
    "archive": ("", "import penstock.archive.export, penstock.archive.table, obstore"),
    "spark": (
        "postgres",
        f"""{PUBLISHES}
    import os, sys
    os.environ |= {{"PENSTOCK_DATABASE_URL": url, "PYSPARK_PYTHON": sys.executable}}
    import penstock.spark
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False)
    session = builder.getOrCreate()
    penstock.spark.register(session)
    rows = session.read.format("penstock").option("topic", "shop/orders").load().collect()
    assert [row["key"] for row in rows] == ["o-1"]
    session.stop()
""",
    ),
    "dagster": (
        "postgres",
        """
        import dagster as dg
        from penstock.dagster import EventRange, PenstockResource, on_events

        def orders(config, penstock): ...
        orders.__annotations__ = {"config": EventRange, "penstock": PenstockResource}
        orders = dg.asset(orders)
        dg.Definitions.validate_loadable(dg.Definitions(
            assets=[orders], sensors=[on_events(orders, "shop/orders")],
            resources={"penstock": PenstockResource()},
        ))
        """,
    ),
    "sqlalchemy": ("", "import penstock, sqlalchemy; penstock.preload()"),
    "asyncpg": ("", "import penstock.aio, asyncpg"),
    "django": ("", "import penstock, django; penstock.preload()"),
    "opentelemetry": ("", "import penstock, opentelemetry.trace; penstock.preload()"),
    "etcd": ("", "import penstock.leases.coordination.etcd, etcd3gw"),
    "redis": ("", "import penstock.leases.coordination.redis, redis"),
    "avro": ("", "import penstock.publishing.schemas.avro, fastavro"),
    "jsonschema": ("", "import penstock.publishing.schemas.json_schema, jsonschema"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The sdist and the wheel out of it; twine has checked both."""
    try:
        return release.build(tmp_path_factory.mktemp("dist"))
    except release.ReleaseError as error:
        missing("what builds a release", error)


@pytest.fixture(scope="module")
def wheel(made: list[Path]) -> Path:
    """The wheel."""
    return next(each for each in made if each.suffix == ".whl")


@pytest.fixture
def install(tmp_path: Path) -> Callable[..., Path]:
    """Makes an empty environment with these packages, in the versions that tests run with."""
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(pins())

    def installed(*what: str) -> Path:
        venv.create(tmp_path / "empty")
        python = tmp_path / "empty" / "bin" / "python"
        release.install(python, "--no-compile", "-c", str(constraints), *what)
        return python

    return installed


def run(*command: str, cwd: Path, code: int = 0, **environment: str) -> str:
    """What a program says, which has to end with this code."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd,
        env=without_checkout() | environment,
    )  # fmt: skip
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@proves("a release is what it says")
def test_it_is_two_files(made: list[Path]) -> None:
    version = penstock.__version__
    assert {each.name for each in made} == {
        f"penstock-{version}-py3-none-any.whl", f"penstock-{version}.tar.gz"
    }  # fmt: skip
    assert all(each.stat().st_size < 2_000_000 for each in made)


@pytest.fixture
def url(request: pytest.FixtureRequest, extra: str) -> Iterator[str]:
    """A database without Penstock for those that need one."""
    if extra == "spark":
        request.getfixturevalue("java_home")
    if extra == "mysql":
        server: MySQLTestServer = request.getfixturevalue("mysql_server")
        yield server.create("release")
        server.drop("release")
    else:
        yield request.getfixturevalue("empty_database_url")


@proves("a release is what it says")
@pytest.mark.parametrize("extra", SMOKES)
def test_each_extra_is_enough_for_what_it_is_for(
    wheel: Path, install: Callable[..., Path], extra: str, url: str, tmp_path: Path
) -> None:
    with_others, smoke = SMOKES[extra]
    extras = ",".join(each for each in (extra, with_others) if each)
    python = install(f"{wheel}[{extras}]" if extras else str(wheel))
    said = run(str(python.parent / "penstock"), "--version", cwd=tmp_path)
    assert said == f"{penstock.__version__}\n"
    code = f"url = {url!r}\n{textwrap.dedent(smoke)}"
    run(str(python), "-I", "-W", "ignore", "-c", code, cwd=tmp_path)
    if extra == "cli":
        command = str(python.parent / "penstock")
        assert "publish" in run(command, "--help", cwd=tmp_path)
        assert "in a checkout of Penstock" in run(command, "relay", cwd=tmp_path, code=2)
        told = run(command, "topic", "list", cwd=tmp_path, code=2, PENSTOCK_DATABASE_URL=url)
        assert "pip install 'psycopg[binary]'" in told


@proves("a release is what it says")
def test_the_tests_of_the_sdist_run(
    made: list[Path], install: Callable[..., Path], tmp_path: Path
) -> None:
    (sdist,) = (each for each in made if each.name.endswith(".tar.gz"))
    python = install(f"{sdist}[cli]", "pytest", "pytest-timeout", "hypothesis")
    run("tar", "-xzf", str(sdist), cwd=tmp_path)
    (unpacked,) = tmp_path.glob("penstock-*/")
    said = run(str(python), "-m", "pytest", "-q", "-o", "addopts=--import-mode=importlib", "tests",
               cwd=unpacked)  # fmt: skip
    assert " passed" in said and "failed" not in said
