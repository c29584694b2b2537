"""What shares a large server stays together in a run of three processes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import compiled
from tests.order import in_thirds

TESTS = Path(__file__).resolve().parents[1]


def _item(name: str, *markers: str, spark: bool = False) -> Any:
    return SimpleNamespace(
        nodeid=f"{name}::test",
        fixturenames=["spark"] if spark else [],
        get_closest_marker=lambda wanted: wanted if wanted in markers else None,
    )


def test_each_group_begins_a_third() -> None:
    others = [_item(f"tests/units/test_{n}.py") for n in range(6)]
    spark = _item("tests/archive/test_a.py", spark=True)
    kafka = [_item("tests/relay/test_k.py", "kafka"), _item("tests/test_k.py", "kafka")]
    redis = _item("tests/relay/test_r.py")
    slow = _item("tests/relay/test_k.py", "kafka", "long")
    attack = _item("tests/faults/test_a.py", "timeout")
    found = in_thirds([slow, *others[:3], *kafka, redis, *others[3:], attack, spark])
    assert len(found) == 12
    assert found[:2] == [spark, attack]
    assert found[3:5] == kafka
    assert found[6] is redis
    assert found[-1] is slow


def test_no_file_starts_a_shared_broker_a_second_time() -> None:
    """A session's fixture that is imported is another fixture, with a server of its own."""
    importing = [
        path.name
        for path in TESTS.rglob("*.py")
        if "from tests.brokers import" in path.read_text() and path != Path(__file__)
    ]
    assert importing == []


def test_each_process_imports_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be imported is left to the collection, which says why."""
    (tmp_path / "tests").mkdir()
    body = "from pathlib import Path\nPath(__file__).with_suffix('.done').touch()\n"
    for number in range(4):
        path = tmp_path / "tests" / f"test_share_{number}.py"
        path.write_text(body + "raise ValueError\n" * (number == 2))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    def done(worker: str | None) -> set[str]:
        config = SimpleNamespace(getini=lambda name: ["tests"], rootpath=tmp_path, args=["tests"])
        if worker:
            config.workerinput = {"workerid": worker, "workercount": 2}
        compiled.import_a_share(cast(pytest.Config, config))
        return {each.stem[-1] for each in tmp_path.rglob("*.done")}

    assert done(None) == set()
    assert done("gw0") == {"0", "2"}
    assert done("gw1") == {"0", "1", "2", "3"}
    assert not any(name.endswith("test_share_2") for name in sys.modules)
