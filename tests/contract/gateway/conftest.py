"""One gateway for a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.databases import ContractDatabase
from tests.contract.gateway.kit import Client, Gateway, gateway_of


@pytest.fixture
def gateway(db: ContractDatabase) -> Iterator[Gateway]:
    """A gateway over the test's database."""
    with gateway_of(db) as made:
        yield made


@pytest.fixture
def shop(gateway: Gateway) -> Client:
    """An account with a key of all levels."""
    return gateway.client("shop")
