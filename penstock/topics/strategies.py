"""How an event that names no partition gets one: the strategy is a field of its topic.

The database applies ``crc32`` (the default: by key; events without a key take the partitions in
turn), ``round_robin`` and ``explicit``.  ``client:NAME`` is a function of the publishers, who
register it here by that name.  The database refuses an event of such a topic that comes without a
partition.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable

from penstock.errors import InvalidArgument, InvalidPartition

#: Returns a partition for (key, number of partitions): at least 0, below the number.
Strategy = Callable[[str | None, int], int]

CLIENT = "client:"
_VALID = re.compile(rf"crc32|round_robin|explicit|{CLIENT}[A-Za-z0-9_.-]{{1,100}}")
_registered: dict[str, Strategy] = {}


def register_strategy(name: str, choose: Strategy) -> None:
    """Register a function for the topics whose strategy is ``client:<name>``, in this process.

    In every publisher it must return the same partition for the same key and number of partitions.
    The database cannot check that.  Registering another function under the name replaces the first.
    """
    if not _is_text(name) or not _VALID.fullmatch(CLIENT + name):
        raise InvalidArgument(
            f"{name!r} cannot be the name of a strategy",
            hint="use 1 to 100 of A-Z, a-z, 0-9, _ . and -",
        )
    if not callable(choose):
        raise InvalidArgument(
            f"a strategy is a {type(choose).__name__}",
            hint="give a function of (key, number of partitions) that returns a partition",
        )
    _registered[name] = choose


def require_valid(strategy: str) -> None:
    """InvalidArgument unless a topic can have this strategy."""
    if not _is_text(strategy) or not _VALID.fullmatch(strategy):
        raise InvalidArgument(
            f"there is no partition strategy {strategy!r}",
            hint="use crc32, round_robin, explicit, or client:NAME for a registered one",
        )


def choose(strategy: str, key: str | None, partitions: int) -> int | None:
    """The partition that a publisher has to name, or None where the database chooses it."""
    if strategy == "explicit":
        raise InvalidPartition(
            "the event names no partition, and the strategy of its topic is explicit",
            hint="give one: partition=...",
        )
    if not strategy.startswith(CLIENT):
        return None
    name = strategy.removeprefix(CLIENT)
    if name not in _registered:
        raise InvalidPartition(
            f"the partition strategy {name!r} of the topic is not registered in this process",
            hint=f"call penstock.register_strategy({name!r}, ...), or give a partition",
        )
    number = _registered[name](key, partitions)
    if type(number) is not int or not 0 <= number < partitions:
        raise InvalidPartition(
            f"the partition strategy {name!r} returned {number!r}",
            hint=f"the topic has {partitions}, numbered from 0",
        )
    return number


def partition_of(key: str, partitions: int) -> int:
    """The partition of a key by ``crc32``: the same on every engine and in every language."""
    return zlib.crc32(key.encode()) % partitions


def _is_text(given: object) -> bool:
    return isinstance(given, str)
