"""What of the contract runs every day on which engine."""

from __future__ import annotations

import pytest

from tests import servers
from tests.contract.databases import ContractDatabase
from tests.contract.kit import open_transaction


def _is_long(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("long") is not None


def test_the_first_of_a_file_does(db: ContractDatabase, request: pytest.FixtureRequest) -> None:
    """So what a file is about is called on MariaDB every day."""
    assert not _is_long(request)


def test_what_may_not_differ_does_not(db: ContractDatabase, request: pytest.FixtureRequest) -> None:
    """Where the run is about all engines; else it is about MariaDB, and has everything."""
    is_whole = set(servers.chosen()) == set(servers.DATABASES)
    assert _is_long(request) == (db.engine not in {"postgres", "mysql"} and is_whole)


def test_what_asks_which_of_the_two_it_is_does(
    db: ContractDatabase, request: pytest.FixtureRequest
) -> None:
    """The name in its code is enough."""
    assert db.engine != "mariadb" or not _is_long(request)


@pytest.mark.mariadb_differs("the marker says so")
def test_what_is_marked_does(db: ContractDatabase, request: pytest.FixtureRequest) -> None:
    """The marker names what differs."""
    assert not _is_long(request)


def _with_a_transaction(db: ContractDatabase) -> None:
    with open_transaction(db):
        pass


def test_what_takes_locks_does(db: ContractDatabase, request: pytest.FixtureRequest) -> None:
    """Also when a helper of the test takes them."""
    _with_a_transaction(db)
    assert not _is_long(request)


@pytest.mark.proves("this rule", guard="itself", how="")
def test_a_mutant_of_python_is_shown_once(
    db: ContractDatabase, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the run is about all engines."""
    is_whole = set(servers.chosen()) == set(servers.DATABASES)
    assert _is_long(request) == (db.engine != "postgres" and is_whole)
