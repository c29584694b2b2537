"""The demo of Kafka: a relay that is killed and paused, and balances that are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import demo_kafka


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_every_balance_is_in_kafka(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--transactions", "2000", "--kills", "2", "--directory", str(tmp_path)]
    assert demo_kafka.main(arguments) == 0
    assert "all equal to those in Kafka" in capsys.readouterr().out
