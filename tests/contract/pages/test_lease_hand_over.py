"""The block of docs/reference/lease-hand-over.md, on the log in memory."""

from __future__ import annotations

import pytest

from tests.contract.pages.blocks import blocks_of, run

PAGE = "docs/reference/lease-hand-over.md"


def test_a_lease_changes_hands(capsys: pytest.CaptureFixture[str]) -> None:
    """The page says what happens: the zombie is refused, and the successor commits."""
    run(PAGE, *blocks_of(PAGE))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("lease_epoch 1")
    assert "lease_epoch 2" in lines[1]
    assert "no longer holds" in lines[2]
    assert lines[3] == "the position is 1"
