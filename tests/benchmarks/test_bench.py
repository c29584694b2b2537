"""The benchmark runs, in a tiny size: the shape of what it writes, not the figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.measure import Case, measure

NAMES = ["publish_single", "publish_batch_500", "publish_copy", "sequence", "fetch", "consume"]
FIELDS = ["name", "engine", "value", "unit", "peer", "ratio", "rows", "batch"]


def test_all_figures_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "bench.json"

    assert main(["--rows", "200", "--rounds", "1", "--output", str(output)]) == 0

    figures = json.loads(output.read_text())
    assert [figure["name"] for figure in figures] == NAMES
    for figure in figures:
        assert list(figure) == FIELDS
        assert figure["engine"] == "postgres"
        assert figure["unit"] == "events/s"
        assert figure["rows"] == 200
        assert figure["batch"] >= 1
        assert figure["value"] > 0
        assert (figure["peer"] is None) == (figure["name"] == "sequence")
        assert (figure["ratio"] is None) == (figure["peer"] is None)
    shown = capsys.readouterr().out
    assert all(name in shown for name in NAMES)


def test_pairs_alternate_and_medians_count() -> None:
    order: list[str] = []
    seconds = {"ours": iter([9.0, 1.0, 2.0, 4.0]), "peer": iter([9.0, 2.0, 2.0, 2.0])}

    def run(who: str) -> float:
        order.append(who)
        return next(seconds[who])

    case = Case("name", 100, 10, lambda: run("ours"), lambda: run("peer"))
    figure = measure(case, "postgres", rounds=3)

    warm_up = ["ours", "peer"]
    assert order == [*warm_up, "peer", "ours", "ours", "peer", "peer", "ours"]
    assert (figure.value, figure.peer, figure.ratio) == (50.0, 50.0, 1.0)


def test_a_wrong_choice_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])
    with pytest.raises(SystemExit):
        main(["--rows", "0"])
