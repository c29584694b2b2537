"""The archive: where targets are, what a row looks like, the tables, and reading copies back.

It needs the extra ``archive``.  What writes, repairs and removes copies is in ``ops``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.errors import MissingExtra

if TYPE_CHECKING:
    from penstock.archive.log_reader import (
        LogReader as LogReader,
        events_of as events_of,
        read as read,
        read_on as read_on,
    )
    from penstock.archive.times import position_at as position_at, start_at as start_at

_NAMES = {
    **dict.fromkeys(("LogReader", "events_of", "read", "read_on"), "log_reader"),
    **dict.fromkeys(("position_at", "start_at"), "times"),
}
__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    """What reads copies is loaded when it is used: who writes an address needs no Arrow for it."""
    if name not in _NAMES:
        raise AttributeError(f"module 'penstock.archive' has no attribute {name!r}")
    try:
        found = import_module(f"penstock.archive.{_NAMES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise MissingExtra.of("pyarrow", "pyarrow") from None
    return getattr(found, name)
