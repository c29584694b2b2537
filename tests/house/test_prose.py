"""The count of sentences that hide their noun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import prose

PAGE = """# It is a heading that begins with a pronoun

It begins so. A consumer that was paused holds nothing. Retention removes what is old.
Who was paused comes later. What does it cost?

- So does an item. Its `code` counts as a word.

```
it is code
```

| it is | a cell of a table |
"""


def test_both_habits_are_counted() -> None:
    found = prose.count([PAGE])
    assert found.begun == ("It begins so.", "Who was paused comes later.", "So does an item.")
    assert found.relatives == ("Retention removes what is old.", "Who was paused comes later.")
    assert found.sentences == 6
    assert [round(each) for each in found.shares] == [50, 33]


def test_too_many_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: the limits."""
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(PAGE)
    assert prose.main([]) == 1
    assert "50.0 % begin with a pronoun" in capsys.readouterr().out
    monkeypatch.setitem(prose.LIMITS, "users", (50.0, 40.0))
    assert prose.main([]) == 0
    assert prose.main([str(tmp_path / "README.md")]) == 0
    assert "  relative: Retention removes what is old." in capsys.readouterr().out
