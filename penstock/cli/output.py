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
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.records import EVENT_FIELDS, Event

_WIDE = 10_000


class Format(enum.StrEnum):
    """How a command answers."""

    table = "table"
    json = "json"


class Lines(enum.StrEnum):
    """How a command answers that writes line by line."""

    text = "text"
    json = "json"


Output = Annotated[Format, typer.Option("--output", "-o", help="table or json")]
LineOutput = Annotated[
    Lines, typer.Option("--output", "-o", help="text, or one JSON object a line")
]


def show(records: Iterable[Any], output: Format) -> None:
    """Write records (dataclasses or dictionaries), each as a line of a table or all as JSON."""
    rows = [as_dict(record) for record in records]
    if output is Format.json:
        show_json(rows)
    else:
        _show_table(rows)


def show_json(value: Any) -> None:
    """Write one JSON document."""
    text = json.dumps(value, default=_as_json, ensure_ascii=False, indent=2)
    sys.stdout.write(f"{text}\n")


def show_line(record: Any) -> None:
    """Write one JSON object on one line."""
    text = json.dumps(as_dict(record), default=_as_json, ensure_ascii=False)
    sys.stdout.write(f"{text}\n")


def say(text: str) -> None:
    """Tell the person at the terminal; standard output is for what programs read."""
    sys.stderr.write(f"{text}\n")


def as_dict(record: Any) -> dict[str, Any]:
    """The fields of a record; a payload that is no text is written in base64."""
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
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(Text(_as_text(row.get(name))) for name in names))
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, highlight=False, width=_WIDE)
    if rows:
        console.print(table)
    else:
        say("nothing")


def _as_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=_as_json, ensure_ascii=False)
    return str(value)


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    if dataclasses.is_dataclass(value):
        return as_dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
