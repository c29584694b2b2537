"""What `make test` leaves to `make test-long`."""

from __future__ import annotations

import pytest

from tests import servers


@pytest.mark.long_on("mysql")
@pytest.mark.parametrize("engine", servers.DATABASES)
def test_it_is_long_on_the_engine_that_is_named(
    request: pytest.FixtureRequest, engine: str
) -> None:
    """And only where the run is about the others too, which show it every day."""
    is_long = request.node.get_closest_marker("long") is not None
    assert is_long == (engine == "mysql" and set(servers.chosen()) == set(servers.DATABASES))
