"""A choice of engines that leaves a test to none of them is refused."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract import every_day


class _Item:
    """What the choice asks of a test."""

    function = None
    fixturenames: tuple[str, ...] = ()

    def __init__(self, engine: str) -> None:
        self.nodeid = f"tests/contract/ops/test_it.py::test_it[{engine}]"
        self.callspec = SimpleNamespace(params={"db": engine})
        self.is_long = False

    def add_marker(self, mark: Any) -> None:
        self.is_long = True

    def get_closest_marker(self, name: str) -> bool | None:
        return self.is_long or None

    def iter_markers(self, name: str) -> Iterator[Any]:
        return iter(())


def _chosen() -> list[str]:
    items: list[Any] = [_Item(engine) for engine in ("postgres", "mysql")]
    every_day.leave_to_long(items)
    return [item.callspec.params["db"] for item in items if not item.is_long]


def test_a_test_that_runs_on_one_is_not() -> None:
    assert _chosen() == ["postgres", "mysql"]


def test_a_test_that_runs_on_none_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every_day, "_left_out", lambda *_: ["postgres", "mysql"])
    with pytest.raises(pytest.UsageError, match=r"no engine runs this every day: .*::test_it$"):
        _chosen()
