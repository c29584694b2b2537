"""Pages that are made from code are fresh; written and made words are counted apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import PenstockError
from tools import error_advice, made, reference_pages, words


def test_the_pages_of_reference_are_not_stale() -> None:
    """Guard: a command, option, error, alert or metric that changes takes its page with it."""
    assert reference_pages.main(["--check"]) == 0, "run python -m tools.reference_pages"


def test_a_stale_page_is_named_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(made, "ROOT", tmp_path)
    pages = [made.Page("page.md", lambda _: made.whole("tools.x", "# Page"))]
    assert made.main("tools.x", pages, ["--check"]) == 1
    assert capsys.readouterr().err == "page.md is stale: run python -m tools.x\n"
    assert not (tmp_path / "page.md").exists()
    assert made.main("tools.x", pages, []) == 0
    assert made.main("tools.x", pages, ["--check"]) == 0
    lost = made.Page("lost.md", lambda page: made.fill(page, {"x": "-"}))
    assert made.main("tools.x", [lost], []) == 1
    assert "no place for the table x" in capsys.readouterr().err


def test_an_error_without_advice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(error_advice.ADVICE, "SinkError")
    with pytest.raises(made.Stale, match="SinkError"):
        reference_pages.error_page("")
    assert PenstockError not in reference_pages.every_error()


def test_written_words_are_counted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: the limit."""
    table = made.fill("# Three words\n<!-- table: x -->\n<!-- end -->\n", {"x": "a b c d"})
    pages = {"made.md": made.whole("tools.x", "no word of it"), "mixed.md": table}
    by_hand, by_code = words.count(pages)
    assert by_hand == 3
    assert by_code == sum(len(page.split()) for page in pages.values()) - 3
    monkeypatch.setattr(words, "tracked", lambda root: [tmp_path / "page.md"])
    monkeypatch.setattr(words, "LIMIT", 2)
    (tmp_path / "page.md").write_text("one two three\n")
    assert words.main(tmp_path) == 1
    assert "3 written, limit 2; 0 made" in capsys.readouterr().out
