"""What a run of clean reports of the slices of the log's tables, and how far each drop is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: Leases that are locked at a time while their positions are copied to a newer slice.
POSITIONS_AT_A_TIME = 1_000


class SliceState(StrEnum):
    """How far the drop of a slice is."""

    ATTACHED = "attached"
    HALF_DETACHED = "half detached"
    DETACHED = "detached"
    DROPPED = "dropped"
    MERGED = "merged"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class SliceDrop:
    """A slice that could go: how far it went, and what stopped it.

    Slices of the index of the log are not dropped but merged into a smaller one of the same ids.
    On MySQL, one of events of which little is needed is kept, with nothing else in it.
    """

    parent: str
    slice: str
    first_id: int
    last_id: int
    state: SliceState
    detail: str = ""
