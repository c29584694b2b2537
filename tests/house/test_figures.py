"""The figures of `make figures`: those of a run are left by a whole run only."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from tests.kit import last_run
from tools import figures


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"markexpr": "not long"}, "test"),
        ({"markexpr": "long"}, "test-long"),
        ({"markexpr": "not long", "keyword": "gateway"}, None),
        ({"markexpr": "not long", "proves": "S21"}, None),
        ({}, None),
    ],
)
def test_a_part_is_no_whole_run(
    pytestconfig: pytest.Config, told: dict[str, str], name: str | None
) -> None:
    nothing = {"markexpr": "", "keyword": "", "proves": None, "lf": False, "deselect": None,
               "collectonly": False}  # fmt: skip
    assert nothing.keys() <= vars(pytestconfig.option).keys()
    assert last_run.whole_run(Namespace(**(nothing | told))) == name
    del nothing["lf"]  # as with -p no:cacheprovider
    assert last_run.whole_run(Namespace(**(nothing | told))) == name


def test_what_was_left_is_shown_with_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(figures, "KEPT", tmp_path)
    assert figures.main() == 0
    assert "release: not measured here: make release\n" in capsys.readouterr().out
    figures.keep("release", wheel=1_300_000, sdist=900_000)
    shown = figures.kept("release", "make release")
    assert shown.startswith("wheel 1,300,000, sdist 900,000 (20")
