"""Whether a checker of histories needs each of its rules."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest


def assert_needed(
    rule: object,
    checker: Any,
    bad: Sequence[tuple[str, Callable[[Any], None]]],
    sound: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the rule, at least one of the bad runs is taken for less bad."""
    found = {}
    for kind, spoil in bad:
        made = sound()
        spoil(made)
        found[spoil.__name__] = kind, copy.deepcopy(made)
    rest = tuple(each for each in checker.RULES if each is not rule)
    monkeypatch.setattr(checker, "RULES", rest)
    assert any(kind not in made.kinds() for kind, made in found.values())
