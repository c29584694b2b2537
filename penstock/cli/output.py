"""What commands write: a table for people, JSON for programs."""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import sys
import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.records import EVENT_FIELDS, Event

if TYPE_CHECKING:  # Rich is loaded for a table only: it takes longer than most commands
    from rich.table import Table

#: Blanks between two columns, and the least width before each field gets a line.
_GAP = 2
_NARROWEST = 6


class Format(enum.StrEnum):
    """How a command writes its result."""

    table = "table"
    json = "json"


class Lines(enum.StrEnum):
    """How a command that works line by line writes its result."""

    text = "text"
    json = "json"


Output = Annotated[Format, typer.Option("--output", "-o", help="table or json")]
LineOutput = Annotated[
    Lines, typer.Option("--output", "-o", help="text, or one JSON object a line")
]


def show(records: Iterable[Any], output: Format) -> None:
    """Write records (dataclasses or dictionaries) as lines of a table, or all as JSON."""
    rows = [as_dict(record) for record in records]
    if output is Format.json:
        show_json(rows)
    else:
        _show_table(rows)


def show_json(value: Any) -> None:
    """Write one JSON document."""
    text = json.dumps(value, default=_as_json, ensure_ascii=_is_ascii(), indent=2)
    sys.stdout.write(f"{text}\n")


def show_line(record: Any) -> None:
    """Write one JSON object on one line."""
    text = json.dumps(as_dict(record), default=_as_json, ensure_ascii=_is_ascii())
    sys.stdout.write(f"{text}\n")


def _is_ascii() -> bool:
    """Whether standard output lacks some characters, so that JSON has to escape them."""
    return "utf" not in (getattr(sys.stdout, "encoding", None) or "utf-8").lower()


def say(text: str) -> None:
    """Tell the person at the terminal.  Standard output is for programs."""
    sys.stderr.write(f"{text}\n")


def as_dict(record: Any) -> dict[str, Any]:
    """The fields of a record.  A payload that is not text is written in base64."""
    if isinstance(record, dict):
        return record
    return dict(_field(name, getattr(record, name)) for name in _names(record))


def _names(record: Any) -> Iterable[str]:
    if isinstance(record, Event):
        return EVENT_FIELDS
    return (field.name for field in dataclasses.fields(record))


def _field(name: str, value: Any) -> tuple[str, Any]:
    if not isinstance(value, bytes):
        return name, value
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        return f"{name}_base64", base64.b64encode(value).decode()


def _show_table(rows: list[dict[str, Any]]) -> None:
    """Columns where they fit, folded where necessary.  Otherwise field by field."""
    if not rows:
        say("nothing")
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_as_text(row.get(name)) for name in names] for row in rows]
    titles = [name.replace("_", " ") for name in names]
    widths = [max(map(_width, column)) for column in zip(titles, *cells, strict=True)]
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        # Not a terminal: no line is too long, so each row is one line.
        console = Console(file=sys.stdout, highlight=False, width=sum(widths) + _GAP * len(widths))
    least = [min(width, _NARROWEST) for width in widths]
    if sum(least) + _GAP * (len(least) - 1) <= console.width:
        console.print(_table(titles, cells, least))
        return
    for number, row in enumerate(cells):
        if number:
            console.print()
        console.print(_fields(titles, row))


def _table(titles: list[str], cells: list[list[str]], least: list[int]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title, width in zip(titles, least, strict=True):
        table.add_column(title, overflow="fold", min_width=width)
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def _fields(titles: list[str], row: list[str]) -> Table:
    """One row, a line for each field."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(overflow="fold", style="bold")
    table.add_column(overflow="fold")
    for title, text in zip(titles, row, strict=True):
        table.add_row(title, Text(text))
    return table


def _width(text: str) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, text.splitlines()), default=0)


def _as_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=_as_json, ensure_ascii=False)
    return "".join(map(_harmless, str(value)))


def _harmless(character: str) -> str:
    """A character, escaped if it is not printable: published text must not control the terminal."""
    is_plain = character.isprintable() or character == "\n"
    return character if is_plain else repr(character)[1:-1]


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    if dataclasses.is_dataclass(value):
        return as_dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
