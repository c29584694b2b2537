"""What relays have done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RelayResult:
    """What a micro-batch did.  ``drained``: its partitions had nothing left to send."""

    events: int
    blocks: int
    dead_letters: int
    failures: int
    drained: bool
    last_error: str
    #: How many events the relay's rules have left out.
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRelayResult(RelayResult):
    """The same of a queue's relay, to which each event is a block.

    ``stale``: marks that came too late and changed nothing.  ``is_away``: the sink took nothing in
    the end, or nothing at all.
    """

    stale: int = 0
    put_back: int = 0
    left_behind: int = 0
    is_away: bool = False
