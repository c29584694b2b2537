"""The contract tests' databases, for tests with faults."""

from __future__ import annotations

from tests.contract.conftest import db, installed_mariadb, installed_mysql

__all__ = ["db", "installed_mariadb", "installed_mysql"]
