"""The history of runs, ``.penstock/bench-history.jsonl``: one line for each run, and what fell.

Figures are compared only with those of the same settings, on a machine with a like score.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import Score, within
from benchmarks.measure import Figure, Settings
from penstock.errors import ConfigurationError

#: A figure that got worse by more than this share is named.
TOLERATED = 0.1
#: A run that is paced by the clock moves not quite the same number of rows each time.
ROWS_FACTOR = 1.1
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Run:
    """One line of the history."""

    date: str
    commit: str
    score: Score
    settings: Mapping[str, Any]
    figures: Sequence[Figure]

    def is_like(self, other: Run) -> bool:
        """Whether the figures of two runs can be compared."""
        return self.settings == other.settings and self.score.is_like(other.score)


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure, and the same one of the last run that can be compared."""

    now: Figure
    before: Figure
    run: Run

    @property
    def value_lost(self) -> float:
        """The share by which the value got worse; below 0 where it got better."""
        grown = _grown(self.before.value, self.now.value)
        return grown if _less_is_better(self.now) else -grown

    @property
    def ratio_lost(self) -> float:
        """The same of the ratio to the peer; 0 where there is none."""
        if self.now.ratio is None or self.before.ratio is None:
            return 0.0
        return -_grown(self.before.ratio, self.now.ratio)

    @property
    def fell(self) -> bool:
        """Whether one of the two got worse by more than is tolerated."""
        return max(self.value_lost, self.ratio_lost) > TOLERATED


def run_of(figures: Sequence[Figure], settings: Settings, score: Score) -> Run:
    """The line of a run that has ended now."""
    return Run(_now(), _commit(), score, asdict(settings), figures)


def compared(past: Sequence[Run], run: Run) -> Iterator[Compared]:
    """Each figure that an earlier run had too, beside that of the last such run."""
    alike = [each for each in reversed(past) if each.is_like(run)]
    for now in run.figures:
        pairs = (
            Compared(now, before, each)
            for each in alike for before in each.figures
            if _is_same(before, now)
        )  # fmt: skip
        if (found := next(pairs, None)) is not None:
            yield found


def read(path: Path) -> list[Run]:
    """All runs, the oldest first.  ConfigurationError for a line that is none."""
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            found.append(_parsed(json.loads(line)))
        except (ValueError, TypeError, KeyError):
            raise ConfigurationError(
                f"line {number} of {path.name} is not a run",
                hint="remove the line, or the file: it is only compared with",
            ) from None
    return found


def append(path: Path, run: Run) -> None:
    """Add a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(run)) + "\n")


def _parsed(line: dict[str, Any]) -> Run:
    return Run(
        line["date"],
        line["commit"],
        Score(**line["score"]),
        line["settings"],
        [Figure(**each) for each in line["figures"]],
    )


def _is_same(one: Figure, other: Figure) -> bool:
    return (one.engine, one.name, one.unit, one.batch) == (
        other.engine, other.name, other.unit, other.batch,
    ) and within(ROWS_FACTOR, one.rows, other.rows)  # fmt: skip


def _less_is_better(figure: Figure) -> bool:
    """Rates are to be high, unless their aim is a bound; all that is no rate is to be low."""
    return (figure.aim or "").startswith("<=") or not figure.unit.endswith("/s")


def _grown(before: float, now: float) -> float:
    return now / before - 1 if before > 0 else 0.0


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _commit() -> str:
    """The commit of the checkout, with a "+" when files were changed since."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()
