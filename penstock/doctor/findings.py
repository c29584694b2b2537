"""The doctor's findings, and the limits from which on it reports them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is: an error loses data or stops the log, a warning may do so soon."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; ``command`` is what mends it."""

    check: str
    severity: Severity
    what: str
    command: str
    #: The page that says more, or ''.
    page: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """When a setting of the server is wrong, what follows from that, and a value that is right."""

    check: str
    severity: Severity
    is_wrong: Callable[[str], bool]
    consequence: str
    right: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What is still acceptable: ages in seconds, and for how many days storage must be ready."""

    snapshot_seconds: float = 600.0
    waiting_seconds: float = 10.0
    storage_days: float = 2.0
    queue_seconds: float = 600.0
    removal_seconds: float = 600.0


#: The alert that goes with a check.  Each has a section in docs/reference/alerts.md.
ALERTS = {
    "sequencer": "PenstockNobodySequences",
    "unsequenced": "PenstockSequencerBehind",
    "snapshot": "PenstockHorizonHeld",
    "prepared_transaction": "PenstockHorizonHeld",
    "replication_slot": "PenstockHorizonHeld",
    "storage": "PenstockStorageShort",
    "dead_letters": "PenstockDeadLetters",
    "skips": "PenstockSubscriptionLate",
    "queue_full": "PenstockQueueOld",
    "queue_old": "PenstockQueueOld",
}


def _page(check: str) -> str:
    return f"docs/reference/alerts.md#{ALERTS[check].lower()}" if check in ALERTS else ""


def error(check: str, what: str, command: str) -> Finding:
    """A finding that needs an operator now."""
    return Finding(check, Severity.ERROR, what, command, _page(check))


def warning(check: str, what: str, command: str) -> Finding:
    """A finding that can wait until tomorrow."""
    return Finding(check, Severity.WARNING, what, command, _page(check))


def more(others: int) -> str:
    """That there are others of the kind that a finding names, or ''."""
    return f" ({others} more like it)" if others else ""


def behind(waits: str, *, is_idle: bool) -> Finding:
    """Events wait too long: either no sequencer works, or it is too slow."""
    if is_idle:
        return error(
            "sequencer",
            f"{waits}, and nobody sequences",
            "penstock sequence  # once; all the time: penstock upkeep",
        )
    return warning(
        "unsequenced",
        f"{waits}: the sequencer runs, but does not keep up",
        "penstock sequence --max-events 100000  # longer passes, until nothing waits",
    )


def duration(seconds: float) -> str:
    """An age in the unit that people would use."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(count: float) -> str:
    """A number of bytes in the unit that people would use."""
    for unit, each in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= each:
            return f"{count / each:.1f} {unit}"
    return f"{count:.0f} bytes"


def shell(*words: str) -> str:
    """A command line.  It never contains the database's password."""
    return shlex.join(word for word in words if word)
