"""PXRS's demo on each registry: 3/3/2, 100 events, one consumer removed, 50 more."""

from __future__ import annotations

import re

import pytest

from tools import demo_rebalance


@pytest.mark.parametrize(
    ("registry", "way"),
    [*((each, "stealing") for each in demo_rebalance.REGISTRIES), ("redis", "coordinated")],
)
def test_demo_rebalance(
    registry: str,
    way: str,
    database_url: str,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {"memory": "memory://demo", "postgres": database_url}
    url = given.get(registry) or request.getfixturevalue(f"{registry}_url")
    partitions = 8 if way == "stealing" else 16
    arguments = ["--partitions", str(partitions), "--registry", registry, "--assign", way]
    assert demo_rebalance.main([*arguments, "--registry-url", url, "--database", database_url]) == 0
    said = capsys.readouterr().out
    held = [int(count) for count in re.findall(r"holds (\d+):", said)]
    assert sorted(held[:3]) == ([2, 3, 3] if partitions == 8 else [5, 5, 6])
    assert held[3:] == [partitions // 2] * 2
    assert re.findall(r"together (\d+)", said) == ["100", "150"]
    positions = re.findall(r"\b\d+=(\d+)", said)
    assert len(positions) == partitions
    assert sum(map(int, positions)) == 150
    assert ("copied to the database" in said) == (registry != "postgres")
