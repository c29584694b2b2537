"""The history of runs: what is compared with what, and which figures are named."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import history, machine, report
from benchmarks.history import Run
from benchmarks.machine import Score
from benchmarks.measure import Aim, Figure, Settings, figure
from penstock.errors import ConfigurationError

QUIET = Score(cores=2, loop_ms=20.0, fsync_ms=0.2)


def _figure(name: str, value: float, unit: str = "events/s", **more: Any) -> Figure:
    plain = figure(name, value, unit=unit, rows=1_000, batch=10)
    return replace(plain, engine="postgres", **more)


def _run(*figures: Figure, score: Score = QUIET, date: str = "then", **settings: Any) -> Run:
    return Run(date, "abc", score, asdict(Settings(**settings)), figures)


def _fell(past: list[Run], now: Run) -> list[str]:
    return [each.now.name for each in history.compared(past, now) if each.fell]


def test_what_fell_by_more_than_a_tenth_is_named() -> None:
    """Guards: the direction of each kind of figure, the share, and the look at the ratio."""
    bound = str(Aim(at_most=12))
    before = _run(
        _figure("fast", 100), _figure("slower", 100), _figure("a little", 100),
        _figure("milliseconds", 10, "ms"), _figure("longer", 10, "ms"),
        _figure("calls", 10, "calls/s", aim=bound), _figure("more calls", 10, "calls/s", aim=bound),
        _figure("beside", 100, ratio=1.0, peer=100), _figure("nothing", 0, "% of a core"),
    )  # fmt: skip
    now = _run(
        _figure("fast", 200), _figure("slower", 89), _figure("a little", 91),
        _figure("milliseconds", 5, "ms"), _figure("longer", 11.2, "ms"),
        _figure("calls", 5, "calls/s", aim=bound), _figure("more calls", 12, "calls/s", aim=bound),
        _figure("beside", 100, ratio=0.8, peer=125), _figure("nothing", 1, "% of a core"),
        _figure("new", 1),
    )  # fmt: skip
    assert _fell([before], now) == ["slower", "longer", "more calls", "beside"]
    assert _fell([now], before) == ["fast", "milliseconds", "calls"]


def test_only_what_can_be_compared_is_compared() -> None:
    """Guards: the settings, each part of the score, and what makes two figures the same."""
    now = _run(_figure("name", 50))
    name = _figure("name", 100)
    others = [
        _run(name, rounds=3),
        _run(name, score=replace(QUIET, cores=4)),
        _run(name, score=replace(QUIET, loop_ms=22.5)),
        _run(name, score=replace(QUIET, fsync_ms=0.4)),
        _run(replace(name, engine="mysql")),
        _run(replace(name, rows=500)),
        _run(replace(name, batch=1)),
        _run(replace(name, unit="ticks/s")),
    ]
    assert list(history.compared(others, now)) == []
    alike = [
        _run(name, score=replace(QUIET, loop_ms=21.5, fsync_ms=0.25)),
        _run(replace(name, rows=1_050)),
    ]
    for each in alike:
        assert _fell([*others, each], now) == ["name"]


def test_each_figure_is_compared_with_the_last_run_that_had_it() -> None:
    past = [
        _run(_figure("one", 100), _figure("two", 100), date="first"),
        _run(_figure("one", 52), date="second"),
        _run(_figure("two", 10), date="busy", score=replace(QUIET, loop_ms=80)),
    ]
    now = _run(_figure("one", 50), _figure("two", 50))
    found = {each.now.name: each.run.date for each in history.compared(past, now)}
    assert found == {"one": "second", "two": "first"}
    assert _fell(past, now) == ["two"]


def test_runs_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "bench-history.jsonl"
    assert history.read(path) == []
    runs = [
        history.run_of([_figure("name", 1.5, ratio=0.5, peer=3.0)], Settings(), QUIET),
        _run(_figure("other", 2)),
    ]
    for each in runs:
        history.append(path, each)
    assert [asdict(each) for each in history.read(path)] == [
        {**asdict(each), "figures": [asdict(one) for one in each.figures]} for each in runs
    ]
    assert set(json.loads(path.read_text().splitlines()[0])) == {
        "date", "commit", "score", "settings", "figures",
    }  # fmt: skip


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"date": "then"}'])
def test_a_line_that_is_no_run_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bench-history.jsonl"
    history.append(path, _run())
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigurationError, match=r"line 2 of bench-history\.jsonl is not a run"):
        history.read(path)


def test_what_fell_is_printed(tmp_path: Path) -> None:
    before = _run(_figure("slower", 2_000, ratio=0.5, peer=4_000), _figure("same", 5))
    now = _run(_figure("slower", 1_000, ratio=0.25, peer=4_000), _figure("same", 5))
    with (tmp_path / "out").open("w") as file:
        console = Console(file=file, width=200)
        report.compare(console, list(history.compared([], now)))
        report.compare(console, list(history.compared([before], now)))
    assert (tmp_path / "out").read_text().splitlines() == [
        "no earlier run can be compared: same settings, a machine of a like score",
        "2 figures compared with the last run of each, 1 fell by more than 10%",
        "  postgres slower: 2,000 -> 1,000 events/s, ratio 0.50 -> 0.25; before: then, commit abc",
    ]


def test_the_score_of_this_machine() -> None:
    found = machine.score()
    assert found.cores == os.cpu_count()
    assert found.loop_ms > 0
    assert found.fsync_ms > 0
    assert found.or_slower(replace(found, loop_ms=1e9)) == replace(found, loop_ms=1e9)
