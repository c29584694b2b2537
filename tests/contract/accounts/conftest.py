"""The two accounts that most tests of accounts have."""

from __future__ import annotations

import pytest

from tests.contract.accounts.kit import Account, account
from tests.contract.tenants import Tenants


@pytest.fixture
def shop(tenants: Tenants) -> Account:
    """An account with a topic of one partition."""
    return account(tenants.owner, "shop")


@pytest.fixture
def bank(tenants: Tenants) -> Account:
    """Another one."""
    return account(tenants.owner, "bank")
