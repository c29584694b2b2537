"""What docs/reference/production.md says of uninstalling leaves nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from penstock import database
from penstock.database import migrate
from penstock.topics import rights
from tests.contract.pages.blocks import text_of

#: A schema of this test's own, since roles belong to the whole server.
SCHEMA = f"penstock_leaving_{os.getpid()}"
ROLES = {
    "postgres": "SELECT rolname FROM pg_roles WHERE rolname LIKE %(name)s",
    "mysql": "SELECT User FROM mysql.user WHERE User LIKE %(name)s",
}
SCHEMAS = "SELECT schema_name FROM information_schema.schemata WHERE schema_name = %(name)s"


@pytest.fixture(params=["postgres", "mysql", "mariadb"])
def engine(request: pytest.FixtureRequest) -> str:
    """One of the three."""
    return str(request.param)


@pytest.fixture
def url(
    engine: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A database with a schema, and its roles."""
    monkeypatch.setenv("PENSTOCK_SCHEMA", SCHEMA)
    server: Any = request.getfixturevalue(f"{engine}_server")
    name = f"{SCHEMA}_app"
    found = server.create(name)
    migrate.migrate(found, schema=SCHEMA)
    yield found
    for each in (name, SCHEMA):
        with suppress(Exception):  # gone already
            server.drop(each)


def test_nothing_of_penstock_is_left(url: str, engine: str) -> None:
    blocks = re.findall(r"```sql\n(.*?)```", text_of("docs/reference/production.md"), re.DOTALL)
    kind = "postgres" if engine == "postgres" else "mysql"
    (text,) = (each for each in blocks if ("CASCADE" in each) == (kind == "postgres"))
    with closing(database.connect(url)) as connection:
        rights.install(connection)
        roles = ROLES[kind], {"name": f"{SCHEMA}%"}
        assert len(database.execute(connection, *roles)) == 7
        for statement in text.replace("penstock", SCHEMA).split(";"):
            if statement.strip():
                database.execute(connection, statement)
        assert database.execute(connection, *roles) == []
        assert database.execute(connection, SCHEMAS, {"name": SCHEMA}) == []
