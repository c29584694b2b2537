"""What a duty works on and what it reports: a unit, and its outcome."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from penstock.records import LogEpoch

#: The name of the database where there is only one.
MAIN = "main"

#: All of a unit's work is done; something is left for the next run; the work failed, the error says
#: why; the processes that tried it died.
DONE, LEFT, FAILED, LOST = STATES = ("done", "left", "failed", "lost")


@dataclass(frozen=True, slots=True)
class DutyUnit:
    """One piece of a duty's work.  It holds no secret, so reports can show it.

    ``database`` is a name that `Setup` knows.  ``first`` and ``last`` are a range of the partition:
    log epochs where copies are read back, sequences in an audit.  ``subject`` is the subscription
    of a relay, or the number of a backfill request.  ``run`` is the run of clean that the unit
    belongs to, or the name under which a request is worked off.  ``due`` are the log epochs of a
    unit that reads back, as they were when the run began.
    """

    duty: str
    database: str = MAIN
    topic: str = ""
    partition: int | None = None
    first: int | None = None
    last: int | None = None
    subject: str = ""
    run: str = field(default="", repr=False)
    due: tuple[LogEpoch, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class DutyOutcome:
    """What became of a unit.

    ``events`` is how many events the duty has moved, numbered, removed or read.  ``result`` is what
    its function returned.  ``worker`` is the process that did it.  ``lasts`` says of an error that
    it stays until somebody changes something.
    """

    unit: DutyUnit
    state: str
    events: int
    seconds: float
    error: str = ""
    result: Any = None
    worker: str = ""
    lasts: bool = False

    def row(self) -> dict[str, Any]:
        """The columns of a report, in their order; the result as JSON."""
        shown = {each: getattr(self.unit, each) for each in _SHOWN}
        rest = {name: getattr(self, name) for name in _REPORTED}
        return shown | rest | {"result": as_json(self.result)}


_SHOWN = ("duty", "database", "topic", "partition", "first", "last", "subject")
_REPORTED = ("state", "events", "seconds", "error", "result", "worker")


def as_json(result: object) -> str:
    """What a function returned, for a report: dataclasses become objects."""
    return json.dumps(result, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)
