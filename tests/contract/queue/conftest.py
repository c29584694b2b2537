"""What the tests of queues share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.consumers.conftest import daemons
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection

__all__ = ["daemons", "own"]


@pytest.fixture
def own(db: ContractDatabase) -> Iterator[Connection]:
    """A connection that commits by itself."""
    with closing(db.connect()) as opened:
        yield opened
