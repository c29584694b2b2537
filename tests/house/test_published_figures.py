"""The figures of README and docs are those of docs/evidence/bench.json."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import pages, rows
from benchmarks.history import Run
from benchmarks.machine import Score
from benchmarks.measure import Aim, figure


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The pages and the figures, to be changed."""
    for name in (*pages.PAGES, str(pages.FIGURES)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(pages.ROOT / name, tmp_path / name)
    return tmp_path


def stale(folder: Path = pages.ROOT) -> set[str]:
    found = pages.written(folder)
    return {
        str(page.relative_to(folder)) for page, text in found.items()
        if page.read_text(encoding="utf-8") != text
    }  # fmt: skip


def test_the_pages_say_what_was_measured() -> None:
    """After a run: python -m benchmarks.pages."""
    assert stale() == set()


def test_a_figure_that_a_page_does_not_have_is_found(folder: Path) -> None:
    file = folder / pages.FIGURES
    figures = json.loads(file.read_text())
    for each in figures:
        if each["name"] == "pgmq_publish_500_full":
            each["ratio"] += 0.1
    file.write_text(json.dumps(figures))
    assert stale(folder) == {"README.md", "docs/why.md", "docs/evidence/performance.md"}


def test_each_published_row_is_explained() -> None:
    names = pages.read()
    assert [name for name in names if not any(row.explains(name) for row in rows.ROWS)] == []


def test_a_page_without_a_place_for_them_is_an_error(folder: Path) -> None:
    (folder / "README.md").write_text("nothing")
    with pytest.raises(SystemExit, match=r"README\.md has no place"):
        pages.written(folder)


def test_what_runs_have_is_published_as_their_medians() -> None:
    def run(day: int, value: float, fsync: float) -> Run:
        measured = figure(
            "latency_hot_p50", value, unit="ms", rows=9, batch=1, aim=Aim(at_most=2.5)
        )
        score = Score(2, 40.0, fsync)
        found = [replace(measured, engine="postgres")]
        return Run(f"2026-11-{day}T01:00:00", "c", score, {}, found)

    found = pages.of_runs([run(25, 2.0, 0.1), run(26, 9.0, 0.3), run(27, 2.6, 0.2)])
    each = found["latency_hot_p50"]
    assert (each.value, each.met, each.measured, each.runs) == (2.6, False, "2026-11-27", 3)
    assert (each.cores, each.fsync_ms) == (2, 0.2)
