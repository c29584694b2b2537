"""How far a sink has a relay's partition, and what of a block is left to send.

For sinks that tell what they hold and refuse who is late. They are asked at the start of a lease;
afterwards each answer of the sink tells it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ops.sinks.base import RelayBlock, SinkMisconfigured
from penstock.records import Event


@dataclass(frozen=True, slots=True)
class SinkEnd:
    """Up to where a sink has a partition: everything before was sent, or given up."""

    history: int
    sequence: int
    #: The event of that sequence; empty when the sink cannot tell.
    event_id: str = ""


#: A sink that has nothing of the partition.
NOTHING = SinkEnd(0, 0)


class SinkBehind(SinkMisconfigured):
    """The sink lacks events that it had: its server has lost them, or somebody removed them."""

    def __init__(
        self,
        block: RelayBlock,
        end: SinkEnd,
        place: str,
        *,
        resend: bool,
        skip: Callable[[str, SinkEnd], None],
    ) -> None:
        first = end.sequence + 1
        super().__init__(
            f"{place} has the events of {block.topic} partition {block.partition} up to sequence "
            f"{end.sequence}, and the relay {block.relay} is at {block.first_sequence}",
            hint=f"the sink has lost {first} to {block.first_sequence - 1}, or they were deleted: "
            "add resend=true to its address, and the relay sends them again; or move the "
            f"subscription there, and they are left out: `penstock subscription seek`",
        )
        self.after = end.sequence
        #: Which of the places of its partition it is, where events choose them.
        self.place = block.place
        self.resend = resend
        self._skip = functools.partial(
            skip, block.topic, SinkEnd(block.history, block.first_sequence - 1)
        )

    def skip(self) -> None:
        """Let the sink go on at the block: what is missing before it was left out on purpose."""
        self._skip()


def left(
    block: RelayBlock,
    end: SinkEnd,
    place: str,
    *,
    resend: bool,
    skip: Callable[[str, SinkEnd], None],
) -> Sequence[Event]:
    """The events of the block that the sink does not have.

    SinkBehind when it also lacks what comes before, SinkMisconfigured when it has what comes after.
    ``skip`` lets the sink go on somewhere, ``resend`` says that it may get again what it has lost.
    """
    if end.history > block.history:
        raise _ahead(block, place, f"has events of history {end.history}")
    if end.sequence < last_before(block):
        raise SinkBehind(block, end, place, resend=resend, skip=skip)
    same = [each for each in block.events if each.sequence == end.sequence]
    is_same = bool(same) and str(same[0].event_id) == end.event_id
    if end.history < block.history:
        # Its record and its sequences were restored together. When the sink's last event is one of
        # this block, then it was sent before the history began, and nothing of it was lost.
        began_before = block.reopened and is_same
        return _after(block, end.sequence if began_before else 0)
    if end.sequence > block.last_sequence:
        raise _ahead(block, place, f"has sequence {end.sequence}")
    if same and end.event_id and not is_same:
        raise _ahead(block, place, f"has another event of sequence {end.sequence}")
    return _after(block, end.sequence)


def last_before(block: RelayBlock) -> int:
    """The last sequence before the block that the place was sent, or that was given up."""
    if block.passed is None:
        return block.first_sequence - 1
    return min(block.passed.get(block.place, 0), block.first_sequence - 1)


def _after(block: RelayBlock, sequence: int) -> Sequence[Event]:
    return [each for each in block.events if each.sequence > sequence]


def _ahead(block: RelayBlock, place: str, finding: str) -> SinkMisconfigured:
    return SinkMisconfigured(
        f"{place} {finding} of {block.topic} partition {block.partition}, but the relay "
        f"{block.relay} is at {block.first_sequence} to {block.last_sequence}",
        hint="the database was restored to an older state, or the subscription was created again "
        "or moved back: reconcile the restore, or relay under another name to another place",
    )
