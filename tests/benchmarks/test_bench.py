"""The benchmark runs, in a tiny size: the shape of what it writes, not the figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.__main__ import GROUPS, main
from benchmarks.measure import Aim, Case, figure, measure
from benchmarks.report import line

#: The peers come from the package registries; what is measured of ours beside them runs elsewhere.
CHEAP = [group for group in GROUPS if group != "peers"]
NAMES = [
    "publish_single", "publish_batch_500", "publish_batch_500_arrays", "publish_copy",
    "pgbench_single", "pgbench_tpcb", "pgbench_tpcb_plain",
    "sequence", "sequence_1024_partitions", "sequence_20_topics",
    "fetch", "fetch_live_ticks", "consume",
    "held_publish", "held_sequence", "held_fetch", "held_consume", "held_kept_rate",
    "held_dead_tuples_per_1000_events",
    "retained_publish_batch_500", "retained_publish_8_clients", "retained_empty_tick",
    "retained_read_newest", "retained_empty_tick_buffers",
]  # fmt: skip
ALONE = {
    "sequence", "held_kept_rate", "held_dead_tuples_per_1000_events", "retained_empty_tick_buffers"
}  # fmt: skip
FIELDS = [
    "name", "engine", "value", "unit", "peer", "ratio", "rows", "batch", "against", "aim", "met"
]  # fmt: skip
TINY = ["--rows", "160", "--rounds", "1", "--hold-seconds", "1", "--retained-events", "500"]


def test_all_figures_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "bench.json"
    chosen = [word for group in CHEAP for word in ("--only", group)]

    assert main([*TINY, *chosen, "--output", str(output)]) == 0

    figures = json.loads(output.read_text())
    assert [figure["name"] for figure in figures] == NAMES
    for each in figures:
        assert list(each) == FIELDS
        assert each["engine"] == "postgres"
        assert each["rows"] > 0
        assert each["batch"] >= 1
        assert each["value"] > 0 or each["unit"] == "tuples"
        assert (each["ratio"] is None) == (each["name"] in ALONE)
        assert (each["met"] is None) == (each["aim"] is None)
    shown = capsys.readouterr().out
    assert all(name in shown for name in NAMES)
    assert re.search(r"load of the last minute \d", shown)


def test_pairs_alternate_and_medians_count() -> None:
    order: list[str] = []
    seconds = {"ours": iter([9.0, 1.0, 2.0, 4.0]), "peer": iter([9.0, 1.0, 1.0, 1.0])}

    def run(who: str) -> float:
        order.append(who)
        return next(seconds[who])

    case = Case("name", 100, 10, lambda: run("ours"), lambda: run("peer"), peer_rows=50)
    measured = measure(case, rounds=3)

    warm_up = ["ours", "peer"]
    assert order == [*warm_up, "peer", "ours", "ours", "peer", "peer", "ours"]
    assert (measured.value, measured.peer, measured.ratio) == (50.0, 50.0, 1.0)
    assert line(measured) == "name: 50 events/s, ratio 1.00"


@pytest.mark.parametrize(
    ("aim", "said", "met", "missed"),
    [
        (Aim(ratio=0.7), ">= 0.7x", (1, 0.7), (100, 0.69)),
        (Aim(cost=1.25), "cost <= 1.25x", (1, 0.8), (100, 0.79)),
        (Aim(value=500_000), ">= 500,000", (500_000, None), (499_999, None)),
        (Aim(at_most=100), "<= 100", (100, None), (101, None)),
    ],
)
def test_an_aim_is_judged(
    aim: Aim, said: str, met: tuple[float, float | None], missed: tuple[float, float | None]
) -> None:
    for (value, ratio), verdict in ((met, True), (missed, False)):
        judged = figure("name", value, ratio=ratio, unit="", rows=1, batch=1, aim=aim)
        assert (judged.aim, judged.met) == (said, verdict)


def test_a_wrong_choice_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])
    with pytest.raises(SystemExit):
        main(["--rows", "0"])
