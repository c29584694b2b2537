"""Which promise a test proves, and which guard it takes out.  A pytest plugin.

``@proves("S21")`` stands on a test of the promise S21 of ``tests/promises.toml``, and
``@proves("S21", guard="loaded_by")`` on one that takes that guard out.  ``--proves S21`` runs the
tests of a promise only, and says how many seconds and lines they take.  ``--promises`` says it of
all that ran.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

_seconds: defaultdict[str, float] = defaultdict(float)


def proves(promise: str, *, guard: str = "", how: str = "") -> pytest.MarkDecorator:
    """The marker.  ``how`` says what is special about the test, for the page."""
    return pytest.mark.proves(promise, guard=guard, how=how)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two options."""
    group = parser.getgroup("promises")
    group.addoption(
        "--proves", help="only the tests of this promise of docs/evidence/invariants.md"
    )
    group.addoption("--promises", action="store_true", help="say what each promise costs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other promises."""
    asked = config.getoption("proves")
    if asked:
        others = [item for item in items if not _proves(item, asked)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if _proves(item, asked)]


def _proves(item: pytest.Item, asked: str) -> bool:
    from tools import invariants_page  # not in the sdist, whose tests are marked too

    marks = item.iter_markers("proves")
    return any(invariants_page.is_about(mark.args[0], asked) for mark in marks)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the seconds of each test, whatever its parameters."""
    _seconds[report.nodeid.partition("[")[0]] += report.duration


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """A line for each promise of which a test ran."""
    from tools import invariants_page

    asked = config.getoption("proves")
    if not asked and not config.getoption("promises"):
        return
    tests: dict[str, dict[str, int]] = {}
    for proof in invariants_page.proofs():
        if proof.test in _seconds and (not asked or invariants_page.is_about(proof.promise, asked)):
            tests.setdefault(proof.promise, {})[proof.test] = proof.lines
    terminalreporter.section("promises")
    for promise, lines in sorted(
        tests.items(), key=lambda each: -sum(_seconds[test] for test in each[1])
    ):
        seconds = sum(_seconds[test] for test in lines)
        terminalreporter.write_line(
            f"{seconds:7.1f} s {sum(lines.values()):5} lines {len(lines):4} tests  {promise}"
        )
