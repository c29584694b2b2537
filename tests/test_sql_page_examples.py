"""The examples of `docs/reference/sql.md`, run in the clients for which they are written.

The psql example is also run through the driver, in tests/postgres/database/test_sql_page.py.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pymysql.cursors
import pytest

from penstock.database import migrate
from tests.doctor.mysql_client import client
from tests.servers import MySQLTestServer
from tests.support import PostgresServer

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "sql.md"
BLOCKS = re.findall(r"```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
SCHEMA = f"penstock_page_{os.getpid()}"
SHOP = f"{SCHEMA}_shop"

#: The servers of the tests have no certificate, which MariaDB's client remarks on.
WITHOUT_TLS = {"mysql": [], "mariadb": ["--skip-ssl"]}

pytestmark = pytest.mark.timeout(300)


def test_the_page_has_an_example_for_each_client() -> None:
    assert len(BLOCKS) == 2
    verbs = [
        "create_topic",
        "publish_json",
        "sequence",
        "subscribe",
        "join",
        "check_in",
        "poll",
        "commit",
    ]
    for block in BLOCKS:
        called = re.findall(r"\bpenstock\.`?(\w+)`?\(", block)
        assert [name for name in called if name in verbs] == verbs


def test_psql(postgres_server: PostgresServer, database_url: str) -> None:
    """As it stands there, in the psql of the server; ends at the first error."""
    if postgres_server.embedded is None:
        program = "psql"
    else:
        program = str(postgres_server.embedded.bin_dir / "psql")
    done = subprocess.run(
        [program, "--no-psqlrc", "--set", "ON_ERROR_STOP=1", database_url],
        input=BLOCKS[0], capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert '1 | ann | order-placed | {"order": 1}' in done.stdout


@pytest.fixture(params=["mysql", pytest.param("mariadb", marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, MySQLTestServer]]:
    """A server with a schema of this test's own, and a database of the application's own."""
    engine: str = request.param
    found: MySQLTestServer = request.getfixturevalue(f"{engine}_server")
    migrate.migrate(found.create(SHOP), schema=SCHEMA)
    yield engine, found
    found.drop(SHOP)
    found.drop(SCHEMA)


def test_the_mysql_client(server: tuple[str, MySQLTestServer]) -> None:
    """As it stands there but for the name of the schema; ends at the first error."""
    engine, found = server
    address = urlsplit(found.url(SHOP))
    login = ["--host", "127.0.0.1", "--port", str(address.port), "--user", str(address.username)]
    done = subprocess.run(
        [*client(engine), *login, *WITHOUT_TLS[engine], "--table", SHOP],
        input=re.sub(r"\bpenstock\.", f"{SCHEMA}.", BLOCKS[1]),
        capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "MYSQL_PWD": address.password or ""},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"\| +65536 \| +1 \| ACTIVE +\| +0 \|", done.stdout), done.stdout
    assert re.search(r"\| billing +\| shop/orders +\| +0 \| +1 \| +1 \| +0 \|", done.stdout)
    with closing(found.connect(SHOP)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT order_id FROM bills")
        assert cursor.fetchall() == ((1,),)
        cursor.execute(f"SELECT state, holder FROM `{SCHEMA}`.leases")
        assert cursor.fetchall() == (("AVAILABLE", None),)


def test_what_the_page_says_of_errors_and_isolation(server: tuple[str, MySQLTestServer]) -> None:
    """An error undoes its own call and no more, and its number and state are as written."""
    _, found = server
    with closing(found.connect(SCHEMA)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE witness (n INT PRIMARY KEY)")
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute("INSERT INTO witness VALUES (1)")
        assert refused(cursor, "CALL create_topic('nowhere/orders', 1, 'crc32')") == 31_001
        connection.commit()
        cursor.execute("SELECT n FROM witness")
        assert cursor.fetchall() == ((1,),)
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert refused(cursor, "CALL check_in('billing', 'consumer-1', UUID(), 1)") == 31_018
        connection.commit()
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute("SET autocommit = 1")
        assert refused(cursor, "CALL create_namespace('shop')") == 31_018


def refused(cursor: pymysql.cursors.Cursor, statement: str) -> int:
    """The number of the error that a statement ends with."""
    with pytest.raises(pymysql.MySQLError) as error:
        cursor.execute(statement)
    return int(error.value.args[0])
