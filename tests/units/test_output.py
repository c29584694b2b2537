"""Tables of the command: on a narrow terminal, a wide one, and where there is none."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest

from penstock.cli.output import Format, show
from tests.kit.proof import proves

NAMES = [f"column_{number:02d}" for number in range(14)]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _shown(
    patch: pytest.MonkeyPatch, rows: list[dict[str, Any]], width: int, *, terminal: bool = True
) -> list[str]:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        patch.delenv(name, raising=False)
    patch.setenv("TERM", "xterm")
    patch.setenv("COLUMNS", str(width))
    out = _Terminal() if terminal else io.StringIO()
    patch.setattr("sys.stdout", out)
    show(rows, Format.table)
    return re.sub(r"\x1b\[\d*m", "", out.getvalue()).splitlines()


def _values(row: int) -> dict[str, Any]:
    return {name: f"v{row}-{number}" for number, name in enumerate(NAMES)}


@proves("the command shows all")
@pytest.mark.parametrize("width", [20, 40, 80])
def test_what_does_not_fit_is_written_field_by_field(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Guard: the width that columns need; rich cuts them off, or makes them a letter wide."""
    rows = [_values(1), _values(2)]
    lines = _shown(monkeypatch, rows, width)
    assert max(map(len, lines)) <= width
    for row in rows:
        for name, value in row.items():
            assert [name.replace("_", " "), value] in [line.rsplit(None, 1) for line in lines]


def test_a_long_value_is_folded_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both forms: a table of few columns, and field by field."""
    digits = "".join(str(number % 10) for number in range(300))
    rows: list[dict[str, Any]] = [
        {"id": 1, "payload": digits},
        {**_values(1), "payload": digits},
    ]
    for row in rows:
        lines = _shown(monkeypatch, [row], 60)
        assert max(map(len, lines)) <= 60
        last_words = [line.split()[-1] for line in lines if line.strip()]
        assert digits in "".join(word for word in last_words if word.isdigit())


def test_what_fits_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = [
        {"partition": 0, "sequence": 17, "key": "ann"},
        {"partition": 1, "key": None},
    ]
    assert [line.split() for line in _shown(monkeypatch, rows, 40)] == [
        ["partition", "sequence", "key"], ["0", "17", "ann"], ["1", "-", "-"],
    ]  # fmt: skip


@proves("the command shows all")
@pytest.mark.parametrize("length", [5, 30_000])
def test_without_a_terminal_a_row_is_one_line(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """Guard: the width is that of the rows; at 10,000 a longer one was broken."""
    rows = [{**_values(1), "payload": "x" * length}, {**_values(2), "payload": "y"}]
    lines = _shown(monkeypatch, rows, 40, terminal=False)
    assert len(lines) == 3
    assert lines[1].split() == [str(value) for value in rows[0].values()]


def test_json_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    out = _Terminal()
    monkeypatch.setattr("sys.stdout", out)
    row = {**_values(1), "payload": "x" * 500}
    show([row], Format.json)
    assert json.loads(out.getvalue()) == [row]


def test_what_was_published_does_not_drive_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard: _harmless; a line break stays one."""
    lines = _shown(monkeypatch, [{"payload": "a\x1b]0;title\x07b\nc"}], 40)
    assert [line.strip() for line in lines] == ["payload", "a\\x1b]0;title\\x07b", "c"]
