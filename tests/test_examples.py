"""The programs of `examples/`, run as their README says, by a login without rights on any table."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

import penstock
from tests.kit.tenants import Tenants, tenants_of
from tests.support import MISSING, missing
from tools import java
from tools.servers.errors import ServerUnavailable
from tools.servers.maven import copy_jars

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
TOPIC = "shop/orders"
LINE = re.compile(r"(\d+):(\d+) (\w+) order (\d+)")

Connection = psycopg.Connection[tuple[Any, ...]]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def shop(connection: Connection, database_url: str) -> Iterator[Tenants]:
    """The application's tables, the topic, and a sequencer that is at work."""
    connection.execute((EXAMPLES / "tables.sql").read_bytes())
    penstock.create_topic(connection, TOPIC, partitions=4, create_namespaces=True)
    stop = threading.Event()

    def sequence() -> None:
        with penstock.connect(database_url) as own:
            while not stop.wait(0.05):
                penstock.sequence(own)

    sequencer = threading.Thread(target=sequence)
    sequencer.start()
    try:
        with tenants_of(connection, database_url) as tenants:
            tenants.install()
            yield tenants
    finally:
        stop.set()
        sequencer.join()


def login(shop: Tenants) -> str:
    """The address for a publisher and consumer who owns nothing of Penstock."""
    name = shop.login("publisher consumer")
    shop.owner.execute(
        sql.SQL("GRANT SELECT, INSERT ON orders, bills TO {}").format(sql.Identifier(name))
    )
    return shop.url_of(name)


def run(*command: str | Path, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        stdin=subprocess.DEVNULL, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def _no_runtime(what: str, why: str) -> NoReturn:
    """The examples are run where their language is; unlike a server, nobody has to have it."""
    pytest.skip(f"{MISSING}{what} ({why})")


@pytest.fixture(scope="session")
def java_command() -> list[str | Path]:
    """How Java runs the program."""
    try:
        home = java.home()
        modules = run(home / "bin" / "java", "--list-modules", folder=ROOT)
        if "jdk.compiler" not in modules:
            _no_runtime("a Java that compiles", f"{home} is a runtime only")
        library = ROOT / ".penstock" / "examples" / "java"
        if not any(library.glob("postgresql-*.jar")):
            copy_jars(EXAMPLES / "java" / "pom.xml", library, {})
    except (java.JavaMissing, ServerUnavailable) as error:
        missing("Java or its database driver", error)
    return [home / "bin" / "java", "-cp", f"{library}/*", EXAMPLES / "java" / "Orders.java"]


@pytest.fixture(scope="session")
def node_program() -> Path:
    """The program beside its packages, which npm has installed."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        _no_runtime("Node", "neither node nor npm is on the PATH")
    folder = ROOT / ".penstock" / "examples" / "node"
    folder.mkdir(parents=True, exist_ok=True)
    for each in ("package.json", "orders.mjs"):
        shutil.copy(EXAMPLES / "node" / each, folder / each)
    done = subprocess.run(
        [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--prefer-offline"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    if done.returncode != 0:
        missing("the npm package pg", done.stderr.strip().splitlines()[-1])
    return folder / "orders.mjs"


def run_java(command: list[str | Path], url: str) -> str:
    parts = urlsplit(url)
    address = f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}"
    login = f"?user={parts.username}&password={parts.password}"
    return run(*command, f"{address}{login}", folder=ROOT)


def check(said: str, shop: Tenants, program: str) -> None:
    """Three orders, each seen and billed once, those of one customer in their order."""
    seen = [LINE.fullmatch(line) for line in said.splitlines()]
    assert all(seen), said
    orders = shop.owner.execute("SELECT customer, id::text FROM orders ORDER BY id").fetchall()
    assert [customer for customer, _ in orders] == ["ann", "bob", "ann"]
    told = [(line[3], line[4]) for line in seen if line]
    assert sorted(told) == sorted(orders)
    assert [each for each in told if each[0] == "ann"] == [orders[0], orders[2]]
    bills = shop.owner.execute("SELECT order_id::text, program FROM bills").fetchall()
    assert sorted(bills) == [(order, program) for _, order in sorted(orders, key=lambda o: o[1])]
    lag = shop.owner.execute(
        "SELECT sum(lag_events), count(holder) FROM penstock.subscription_lag(%s)", (program,)
    ).fetchone()
    assert lag == (0, 0)
    assert shop.owner.execute("SELECT count(*) FROM penstock.consumers").fetchone() == (0,)


@pytest.mark.long
def test_java(shop: Tenants, java_command: list[str | Path]) -> None:
    check(run_java(java_command, login(shop)), shop, "java")


def test_node(shop: Tenants, node_program: Path) -> None:
    check(run("node", node_program, login(shop), folder=ROOT), shop, "node")


def test_the_readme_names_every_program() -> None:
    text = (EXAMPLES / "README.md").read_text("utf-8")
    programs = [*EXAMPLES.glob("*/*.java"), *EXAMPLES.glob("*/*.mjs")]
    assert len(programs) == 3
    for each in programs:
        assert f"`{each.relative_to(EXAMPLES)}`" in text
