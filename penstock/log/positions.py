"""Positions of the log (LSN): the log epoch and the sequence, as a pair and as text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from penstock import database
from penstock.errors import InvalidArgument
from penstock.topics import validation

MAX_LOG_EPOCH = 2_147_483_647
MAX_SEQUENCE = 10**18
_TEXT = re.compile(r"(0|[1-9]\d{0,9})\.([1-9]\d{0,18})", re.ASCII)
_HINT = (
    f"write log_epoch.sequence: a log epoch of 0 to {MAX_LOG_EPOCH} and a sequence of 1 to 10^18"
)


@dataclass(frozen=True, slots=True)
class Lsn:
    """A position of a partition's log.

    ``sequence`` alone says which event is meant.  ``log_epoch`` says in which log epoch the event
    was sealed, so that a position of another partition or another history is noticed.  0 stands
    for an event that was not sealed yet: then only the sequence is looked at.
    """

    log_epoch: int
    sequence: int

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        bounds = ((self.log_epoch, 0, MAX_LOG_EPOCH), (self.sequence, 1, MAX_SEQUENCE))
        if not all(validation.is_integer(n) and low <= n <= high for n, low, high in bounds):
            raise InvalidArgument(
                f"({self.log_epoch!r}, {self.sequence!r}) is no position of the log", hint=_HINT
            )

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """The position that a text like ``3.1000`` stands for."""
        given: Any = text
        found = _TEXT.fullmatch(given) if isinstance(given, str) else None
        if found is None:
            raise InvalidArgument(f"{text!r} is no position of the log", hint=_HINT)
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        """The text that :meth:`parse` reads."""
        return f"{self.log_epoch}.{self.sequence}"


def lsn_of(connection: Any, topic: str, partition: int, sequence: int) -> Lsn:
    """The position of a sequence: with its log epoch, or with 0 while it is not sealed."""
    Lsn(0, sequence)  # refuses what is no sequence
    rows = database.call(
        connection,
        "lsn_of",
        topic=validation.topic(topic),
        partition=_partition(partition),
        sequence=sequence,
    )
    return Lsn(int(rows[0][1]), sequence)


def sequence_of(connection: Any, topic: str, partition: int, lsn: Lsn | str) -> int:
    """The sequence of a position.  EpochError when its log epoch does not hold the sequence."""
    given = lsn if isinstance(lsn, Lsn) else Lsn.parse(lsn)
    rows = database.call(
        connection,
        "sequence_of",
        topic=validation.topic(topic),
        partition=_partition(partition),
        lsn=str(given),
    )
    return int(rows[0][0])


def _partition(partition: Any) -> int:
    validation.fetched(partition, 1, 1)
    return int(partition)
