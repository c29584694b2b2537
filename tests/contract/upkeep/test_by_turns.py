"""What PostgreSQL and MySQL take by turns, where a folder adds Python to the SQL of others."""

from __future__ import annotations

import pytest

from tests import servers
from tests.contract.databases import ContractDatabase
from tests.contract.kit import open_transaction

IS_WHOLE = set(servers.chosen()) == set(servers.DATABASES)


def _shown_by(request: pytest.FixtureRequest) -> set[str]:
    """The engine of this test, if it is one that shows it every day; else nothing."""
    is_long = request.node.get_closest_marker("long") is not None
    return set() if is_long else {request.node.callspec.params["db"]}


def test_the_first_of_a_file_is_shown_by_both(
    db: ContractDatabase, request: pytest.FixtureRequest
) -> None:
    assert not IS_WHOLE or _shown_by(request) == {db.engine} & {"postgres", "mysql"}


def test_the_second_is_postgresqls(request: pytest.FixtureRequest, db: ContractDatabase) -> None:
    assert not IS_WHOLE or _shown_by(request) <= {"postgres"}


def test_the_third_is_mysqls(request: pytest.FixtureRequest, db: ContractDatabase) -> None:
    assert not IS_WHOLE or _shown_by(request) <= {"mysql"}


def test_locks_are_shown_by_all(db: ContractDatabase, request: pytest.FixtureRequest) -> None:
    with open_transaction(db):
        assert _shown_by(request) == {db.engine}
