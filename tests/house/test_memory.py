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
