"""The demos of brokers: a relay that is killed and paused, and balances that are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import demo_broker


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("broker", "title"),
    [
        pytest.param("kafka", "Kafka", marks=pytest.mark.kafka),
        pytest.param("pulsar", "Pulsar", marks=pytest.mark.pulsar),
    ],
)
def test_every_balance_is_in_the_broker(
    broker: str, title: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--transactions", "2000", "--kills", "2", "--directory", str(tmp_path)]
    assert demo_broker.main([broker, *arguments]) == 0
    assert f"all equal to those in {title}" in capsys.readouterr().out
