"""The order of the tests, for a run in three processes.

Each process gets a third, in this order, and one that has finished takes from the end of another's.
So what stands at the beginning of a third stays together, and its servers are started once: Spark;
Kafka and Pulsar; the other sinks of relays.

Then come tests with a time limit of their own.  At the end of a run, a process with one of them
would keep the two others waiting.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_PROCESSES = 3


def in_thirds(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests, those of each group at the beginning of a third.  Long ones come last."""
    groups: list[list[pytest.Item]] = [[] for _ in range(_PROCESSES)]
    others: list[pytest.Item] = []
    long_ones: list[pytest.Item] = []
    for item in items:
        number = _group(item)
        if item.get_closest_marker("long"):
            long_ones.append(item)
        elif number is None:
            others.append(item)
        else:
            groups[number].append(item)
    others.sort(key=lambda item: item.get_closest_marker("timeout") is None)
    third = (len(items) - len(long_ones)) // _PROCESSES
    found: list[pytest.Item] = []
    for group in groups:
        room = max(0, third - len(group))
        found += group + others[:room]
        del others[:room]
    return found + others + sorted(long_ones, key=lambda item: _group(item) or 0)


def _group(item: pytest.Item) -> int | None:
    if "spark" in getattr(item, "fixturenames", ()):
        return 0
    if item.get_closest_marker("kafka") or item.get_closest_marker("pulsar"):
        return 1
    folders = Path(item.nodeid.partition("::")[0]).parts
    return 2 if "relay" in folders else None
