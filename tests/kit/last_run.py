"""Leaves how long the last whole run took, and how it ended, for `make figures`."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import TYPE_CHECKING

import pytest

from tools import figures

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

_BEGAN = pytest.StashKey[float]()
#: The whole runs, by the marker that chooses their tests.
_RUNS = {"not long": "test", "long": "test-long"}
_TO_THE_END = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_BEGAN] = time.monotonic()


def pytest_terminal_summary(
    terminalreporter: TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    if exitstatus not in _TO_THE_END:
        return
    everywhere = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    name = whole_run(config.option) if everywhere else None
    if name is not None:
        stats = terminalreporter.stats
        counts = {each: len(stats.get(each, ())) for each in ("passed", "failed", "error")}
        figures.keep(name, **counts, seconds=round(time.monotonic() - config.stash[_BEGAN]))


def whole_run(told: Namespace) -> str | None:
    """What a run of all tests is called; None when more than the marker chooses them."""
    chosen = "keyword", "proves", "lf", "deselect", "collectonly"  # lf: with pytest's cache alone
    is_chosen = any(getattr(told, each, None) for each in chosen)
    return None if is_chosen else _RUNS.get(told.markexpr)
