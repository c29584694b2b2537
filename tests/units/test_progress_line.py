"""The line that tells how a backlog drains."""

from __future__ import annotations

import io

import pytest

from ops.commands.progress import line, live_line
from tests.kit.log import wait_until


class Terminal(io.StringIO):
    """What a person sees."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("done", "total", "seconds", "said"),
    [
        (0, 10, 0.0, "0 of 10 events, 0 a second"),
        (1_000, 3_000, 2.0, "1,000 of 3,000 events, 500 a second, 4 s left"),
        (1_000, 100_000, 1.0, "1,000 of 100,000 events, 1,000 a second, 1 min 39 s left"),
        (12, 10, 2.0, "12 of 12 events, 6 a second"),
    ],
)
def test_what_it_says(done: int, total: int, seconds: float, said: str) -> None:
    assert line(done, total, seconds) == said


def test_it_is_written_anew_and_gone_at_the_end() -> None:
    terminal, done = Terminal(), [0]
    with live_line(lambda: 7, lambda: done[0], stream=terminal, seconds=0.001):
        wait_until(lambda: "0 of 7" in terminal.getvalue(), "the first line")
        done[0] = 7
        wait_until(lambda: "7 of 7" in terminal.getvalue(), "the last line")
    assert terminal.getvalue().endswith(" \r")


def test_a_program_gets_no_such_line() -> None:
    """Guard: the question whether it is a terminal."""
    out = io.StringIO()
    with live_line(lambda: 7, lambda: 1, stream=out, seconds=0.001):
        pass
    assert not out.getvalue()
