"""Numbers that a visitor of the page gives."""

from __future__ import annotations

from typing import Any, cast

import pytest

from consumers.gateway.pages.visits import Problem, Visit


@pytest.mark.parametrize("text", ["0" * 20 + "9" * 40, "1" * 30, "-1", "x", "\u0661"])
def test_what_is_no_number_within_its_bounds_is_refused(text: str) -> None:
    """Guard: no more than 20 digits; the first 20 alone say nothing."""
    nothing = cast(Any, None)
    with pytest.raises(Problem, match="a whole number from 0 to"):
        Visit(nothing, nothing, {"before": text}).number("before")
    assert Visit(nothing, nothing, {"before": "0" * 19 + "7"}).number("before") == 7
