"""The contract's databases, one for each engine."""

from __future__ import annotations

from tests.contract.conftest import (
    db,
    installed_mariadb,
    installed_mysql,
    pytest_generate_tests,
)

__all__ = ["db", "installed_mariadb", "installed_mysql", "pytest_generate_tests"]
