"""How values are shown, and the templates."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2

from consumers.gateway.pages.readings import MOST_COUNTED
from penstock.doctor.findings import duration, size
from penstock.records import as_time

_TEMPLATES = Path(__file__).with_name("templates")
#: Of a payload, so much is shown.
MOST_SHOWN_BYTES = 10_000
_LONG = 60


def environment() -> jinja2.Environment:
    """The templates.  All values are escaped, and a name that is not there is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": number,
        "bounded": bounded,
        "age": age,
        "ago": ago,
        "time": time_of,
        "size": size,
        "short": short,
        "link": link,
    }
    return made


def style() -> bytes:
    """The style sheet."""
    return (_TEMPLATES / "style.css").read_bytes()


def number(value: float | None) -> str:
    """A number with commas; a dash for one that is not known."""
    return "-" if value is None else f"{value:,}"


def bounded(value: int | None) -> str:
    """A count that stops at a bound: there it says that there are so many or more."""
    if value is not None and value >= MOST_COUNTED:
        return f"{MOST_COUNTED:,}+"
    return number(value)


def age(seconds: float | None) -> str:
    """How long, in the unit that people would use."""
    return "-" if seconds is None else duration(float(seconds))


def ago(at: datetime | None) -> str:
    """How long since a time, or until it."""
    if at is None:
        return "never"
    seconds = (datetime.now(UTC) - as_time(at)).total_seconds()
    return f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"


def time_of(at: datetime | None) -> str:
    """A time of the database, in UTC."""
    return "-" if at is None else f"{as_time(at).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def short(text: str | None, most: int = _LONG) -> str:
    """The beginning of a text."""
    if text is None:
        return "-"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def link(path: str, **given: Any) -> str:
    """An address of the page; parameters that are None or empty are left out."""
    kept = {name: value for name, value in given.items() if value not in {None, ""}}
    return f"{path}?{urlencode(kept)}" if kept else path


def as_shown(payload: bytes) -> Mapping[str, Any]:
    """A payload as text where it is text, else in hex; its beginning when it is long."""
    cut = payload[:MOST_SHOWN_BYTES]
    is_cut = len(payload) > MOST_SHOWN_BYTES
    try:
        # The cut may have split a character.
        text, kind = cut.decode(errors="ignore" if is_cut else "strict"), "text"
    except UnicodeDecodeError:
        text, kind = cut.hex(" "), "hex"
    return {"text": text, "kind": kind, "is_cut": is_cut, "bytes": len(payload)}
