"""Where the files of tests lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import memory


def test_memory_is_used_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memory.folder().parent == memory.MEMORY
    monkeypatch.setattr(memory, "BYTES", 1 << 60)
    assert not memory.has_room()
    monkeypatch.setattr(memory, "BYTES", 0)
    monkeypatch.setattr(memory, "MEMORY", tmp_path / "missing")
    assert not memory.has_room()


def test_folders_of_checkouts_that_are_gone_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MEMORY", tmp_path)
    for name, checkout in (("gone", tmp_path / "missing"), ("there", tmp_path)):
        (tmp_path / f"penstock-{name}").mkdir()
        (tmp_path / f"penstock-{name}" / "checkout").write_text(str(checkout))
    (tmp_path / "penstock-unknown").mkdir()
    memory.make()
    kept = {"penstock-there", "penstock-unknown", memory.folder().name}
    assert {each.name for each in tmp_path.iterdir()} == kept
