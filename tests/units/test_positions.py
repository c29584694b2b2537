"""Positions of the log in Python: what is one, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidArgument
from penstock.log import Lsn


@pytest.mark.parametrize("text", ["0.1", "1.1", "2147483647.1000000000000000000"])
def test_a_position_is_text_and_a_pair(text: str) -> None:
    """Guards: the bounds, which are included."""
    found = Lsn.parse(text)
    assert str(found) == text
    assert (found.log_epoch, found.sequence) == tuple(map(int, text.split(".")))
    assert Lsn(found.log_epoch, found.sequence) == found


WRONG: list[Any] = [
    "", "1", "1.", ".1", "1.0", "01.1", "1.01", "-1.1", "1.-1", "+1.1", "1.1 ", " 1.1", "1.1\n",
    "1.1.1", "1,1", "a.1", "1.٣", "2147483648.1", "1.1000000000000000001", "9" * 30 + ".1",
    None, 1, 1.1, b"1.1",
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG, ids=repr)
def test_other_text_is_refused(text: Any) -> None:
    """Guards: the pattern and the bounds."""
    with pytest.raises(InvalidArgument, match="no position of the log"):
        Lsn.parse(text)


@pytest.mark.parametrize(("log_epoch", "sequence"), [
    (-1, 1), (2**31, 1), (1, 0), (1, 10**18 + 1), (True, 1), (1, 1.0), ("1", 1), (None, 1),
])  # fmt: skip
def test_a_pair_out_of_range_is_refused(log_epoch: Any, sequence: Any) -> None:
    """Guard: the bounds of each half."""
    with pytest.raises(InvalidArgument, match="no position of the log"):
        Lsn(log_epoch, sequence)
