"""``penstock upkeep`` as processes that do not outlive their test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.consumers.process import DAEMON, PENSTOCK, Daemon

Start = Callable[..., Daemon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts ``penstock upkeep``, or with ``daemon=True`` the daemon of the checkout."""
    started: list[Daemon] = []
    numbers = itertools.count(1)

    def begin(url: str, *arguments: str, daemon: bool = False, **environment: str) -> Daemon:
        program = DAEMON if daemon else (*PENSTOCK, "upkeep")
        folder = tmp_path / f"program{next(numbers)}"
        started.append(Daemon(url, folder, arguments, environment, program))
        return started[-1]

    yield begin
    for each in started:
        each.kill()
