"""The sinks under attack."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.relay.conformance.under_test import Files, OnKafka, OnPulsar, UnderTest
from tests.relay.conftest import broker, kafka_broker, topic

__all__ = ["broker", "kafka_broker", "topic"]


@pytest.fixture
def under_test(request: pytest.FixtureRequest, tmp_path: Path) -> UnderTest:
    """The sink whose name the test is given."""
    if request.param == "kafka":
        return OnKafka(request.getfixturevalue("kafka_broker"))
    if request.param == "pulsar":
        return OnPulsar(request.getfixturevalue("broker"))
    return Files(tmp_path)
