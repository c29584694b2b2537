"""What the docs say of speed: medians of the last runs, and what each row times.

python -m benchmarks.pages --last 3    # of the runs that `make bench` has left in its history
python -m benchmarks.pages             # the pages anew, out of docs/evidence/bench.json

A row that the runs do not have keeps its figures and its date.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks import history, report, rows
from benchmarks.history import Run
from tools import made

ROOT = Path(__file__).resolve().parents[1]
FIGURES = Path("docs/evidence/bench.json")
PERFORMANCE = "docs/evidence/performance.md"
_BEGIN, _END = "<!-- speed -->\n", "<!-- /speed -->"

#: The rows of the first screen, what each is, and what stands beside it.
ROWS = {
    "publish_batch_500": ("publish 500 a commit, from Python", "`executemany` into a bare table"),
    "pgmq_publish_500_full": ("the same", "pgmq's `send_batch`, in the same columns"),
    "publish_single": ("publish one at a time, from Python", "one INSERT"),
    "pgbench_single": ("publish one at a time, 8 clients", "one INSERT"),
    "pgmq_publish_single_full": ("the same", "pgmq's `send`, in the same columns"),
    "pgbench_tpcb": ("a TPC-B transaction with an event in it", "with an INSERT in it"),
    "consume_class": ("`penstock.Consumer`: read, handle, commit", "a loop over a cursor row"),
    "consume": ("a loop over `poll` and `commit`", "a loop over a cursor row"),
    "consume_tuples": ("the same, as bare tuples", ""),
    "queue_500": ("a queue by 500, one worker", "pgmq"),
    "queue_500_workers_16": ("a queue by 500, 16 workers", "pgmq"),
    "queue_10_workers_16": ("a queue by 10, 16 workers", "pgmq"),
    "queue_1_workers_16": ("a queue one by one, 16 workers", "pgmq"),
    "latency_hot_p50": ("from COMMIT to handler at 1,000/s, half within", ""),
    "latency_hot_p99": ("the same, 99 % within", ""),
    "latency_hot_database": ("what the database takes meanwhile", ""),
    "latency_queue_p50": ("from COMMIT to handler of a queue, half within", ""),
    "latency_queue_p99": ("the same, 99 % within", ""),
    "latency_cold_p99": ("from COMMIT to handler after an idle minute, 99 % within", ""),
    "latency_woken_p99": ("the same with a waker, 99 % within", ""),
    "account_publish": ("publish for an account", "for a login"),
    "account_receive": ("receive ten for an account", "for a login"),
    "account_acknowledge": ("acknowledge ten for an account", "for a login"),
    "start_import": ("a new process imports Penstock", ""),
    "start_publish": ("a new `penstock publish`", ""),
    "cold_start": ("a new process reads 100 archived events", ""),
    "spark_read_cold": ("Spark reads an archive", "Spark reads plain Parquet"),
}
_SUMMARY = """\
- **Publishing:** batches of 500 go in at publish_batch_500.ratio times the speed of `executemany` \
into a bare table, and at pgmq_publish_500_full.ratio times that of pgmq with the same columns \
(pgmq_publish_500_full.value events/s).
- **Consuming:** `penstock.Consumer` reads, handles and commits consume_class.value events/s, \
consume_class.ratio times a loop over a bare table that keeps its position in a row.
- **From COMMIT to handler** at 1,000 events/s: half of the events within latency_hot_p50.value \
ms, 99 % within latency_hot_p99.value ms."""
_BESIDE_QUEUES = """\
Times as fast as pgmq, on one machine, with the same columns:

- publishing one by one pgmq_publish_single_full.ratio, by 500 pgmq_publish_500_full.ratio;
- reading and finishing by a stream pgmq_read_finish_500.ratio: it finishes 500 events with one \
row, by design;
- by a queue: 500 messages queue_500.ratio with one worker and queue_500_workers_16.ratio with 16; \
with 16 workers queue_10_workers_16.ratio by ten and queue_1_workers_16.ratio one by one."""
WIDTH = 100
_SHORT_UNITS = {"% of a core": " % of a core", "ms": " ms", "events/s": "/s"}


@dataclass(frozen=True, slots=True)
class Published:
    """A figure as the docs say it: the medians of so many runs."""

    name: str
    engine: str
    value: float
    unit: str
    peer: float | None
    ratio: float | None
    aim: str | None
    #: What most of the runs say of it.
    met: bool | None
    #: The day of the last run, and what the machine was like.
    measured: str
    cores: int
    fsync_ms: float
    runs: int


def read(folder: Path = ROOT) -> dict[str, Published]:
    """The figures of PostgreSQL that are published, by name."""
    found = (Published(**each) for each in json.loads((folder / FIGURES).read_text()))
    return {each.name: each for each in found}


def of_runs(runs: Sequence[Run]) -> dict[str, Published]:
    """The medians of what the runs have on PostgreSQL."""
    found: dict[str, Published] = {}
    for name in {each.name for run in runs for each in run.figures if each.engine == "postgres"}:
        having = [
            (run, each) for run in runs for each in run.figures
            if (each.name, each.engine) == (name, "postgres")
        ]  # fmt: skip
        last_run, last = having[-1]
        met = [each.met for _, each in having]
        found[name] = Published(
            name, "postgres", _median([each.value for _, each in having]) or 0.0, last.unit,
            _median([each.peer for _, each in having]),
            _median([each.ratio for _, each in having]), last.aim,
            None if last.aim is None else 2 * met.count(True) > len(met), last_run.date[:10],
            last_run.score.cores, median(run.score.fsync_ms for run, _ in having), len(having),
        )  # fmt: skip
    return found


def _median(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return round(median(known), 3) if known else None


def table(figures: Mapping[str, Published]) -> str:
    """The first screen of docs/evidence/performance.md."""
    return "\n".join([
        "| what | Penstock | beside | ratio | aim | result | measured |",
        "|---|---:|---|---:|---|---|---|",
        *(_line(figures[name], *said) for name, said in ROWS.items() if name in figures),
        "",
        *_machines(figures),
    ])  # fmt: skip


def _line(each: Published, what: str, beside: str) -> str:
    shown = f"{_number(each.value)}{_SHORT_UNITS.get(each.unit, ' ' + each.unit)}"
    if "processor" in each.unit:
        shown = ""
    ratio = "" if each.ratio is None else f"{each.ratio:.2f}"
    result = {None: "", True: "met", False: "missed"}[each.met]
    cells = (what, shown, beside, ratio, each.aim or "", result, each.measured[5:])
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def _machines(figures: Mapping[str, Published]) -> Iterator[str]:
    days: dict[tuple[str, int], list[Published]] = {}
    for name in ROWS.keys() & figures.keys():
        each = figures[name]
        days.setdefault((each.measured, each.cores), []).append(each)
    for (day, cores), found in sorted(days.items()):
        fsyncs = sorted({f"{each.fsync_ms:.2f}" for each in found})
        fsync = fsyncs[0] if len(fsyncs) == 1 else f"{fsyncs[0]} to {fsyncs[-1]}"
        counts = sorted({each.runs for each in found})
        runs = "one run" if counts == [1] else f"medians of {counts[-1]} runs"
        if len(counts) > 1:
            runs = f"medians of {counts[0]} to {counts[-1]} runs"
        yield f"- {day}: {cores} cores, a sync of the disk {fsync} ms, {runs}."


def summary(figures: Mapping[str, Published]) -> str:
    """The figures of the README."""
    return _filled(_SUMMARY, figures)


def beside_queues(figures: Mapping[str, Published]) -> str:
    """The figures of docs/why.md."""
    return _filled(_BESIDE_QUEUES, figures)


def _filled(text: str, figures: Mapping[str, Published]) -> str:
    """The template with `NAME.ratio` and `NAME.value` as figures, in short lines."""

    def said(place: re.Match[str]) -> str:
        each = figures[place[1]]
        return f"{each.ratio:.2f}" if place[2] == "ratio" else _number(each.value)

    lines = re.sub(r"(\w+)\.(ratio|value)\b", said, text).splitlines()
    return "\n".join(
        textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False) for line in lines
    )


#: What each page has between its marks.
PAGES: Mapping[str, Callable[[Mapping[str, Published]], str]] = {
    "README.md": summary,
    PERFORMANCE: table,
    "docs/why.md": beside_queues,
}


def written(folder: Path = ROOT) -> dict[Path, str]:
    """Each page as it has to be."""
    figures, found = read(folder), {}
    for name, text in PAGES.items():
        before = (folder / name).read_text(encoding="utf-8")
        start, begin, rest = before.partition(_BEGIN)
        _, end, after = rest.partition(_END)
        if not begin or not end:
            raise SystemExit(f"error: {name} has no place for the figures: {_BEGIN.strip()}")
        found[folder / name] = f"{start}{begin}{text(figures)}\n{end}{after}"
    speed = folder / PERFORMANCE
    return found | {speed: made.fill(found[speed], {"rows": rows.table()})}


def main() -> None:
    """Write docs/evidence/bench.json and the pages."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--last", type=int, default=0, help="how many runs to take the medians of")
    last = parser.parse_args().last
    if last:
        past = history.read(report.default_output().with_name("bench-history.jsonl"))
        figures = read() | of_runs(past[-last:])
        lines = [asdict(figures[name]) for name in sorted(figures)]
        (ROOT / FIGURES).write_text(json.dumps(lines, indent=1) + "\n")
    for page, text in written().items():
        page.write_text(text, encoding="utf-8")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


if __name__ == "__main__":
    main()
