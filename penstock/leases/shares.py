"""The arithmetic of sharing partitions out: pure functions, the same for every registry.

Shares go by weight with largest remainders (Hamilton), and ties by name.  So every partition has a
taker, shares at equal weights differ by at most one, and the same input gives the same shares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from penstock.errors import InvalidArgument

#: Weights count to a millionth.  They are whole numbers here, so that all consumers round alike.
UNITS = 10**6


def quotas(weights: Mapping[str, float], partitions: int) -> dict[str, int]:
    """How many partitions each consumer should hold.  Together they make all partitions."""
    units = {name: max(round(weight * UNITS), 1) for name, weight in weights.items()}
    total = sum(units.values())
    exact = {name: divmod(each * partitions, total) for name, each in units.items()}
    shares = {name: whole for name, (whole, _) in exact.items()}
    left_over = partitions - sum(shares.values()) if weights else 0
    for name in sorted(exact, key=lambda name: (-exact[name][1], name))[:left_over]:
        shares[name] += 1
    return shares


def to_release(
    consumer: str,
    holders: Mapping[int, str | None],
    shares: Mapping[str, int],
    backlogs: Mapping[int, int],
) -> list[int]:
    """What a consumer gives back: smallest backlog first, and only while others have too little.

    ``holders`` are the active partitions.  Free partitions go first to consumers with too little.
    """
    mine = [partition for partition, holder in holders.items() if holder == consumer]
    surplus = len(mine) - shares.get(consumer, 0)
    if surplus <= 0:
        return []
    held = Counter(holders.values())
    free = sum(count for holder, count in held.items() if holder not in shares)
    short = sum(max(share - held[name], 0) for name, share in shares.items()) - free
    mine.sort(key=lambda partition: (backlogs.get(partition, 0), partition))
    return mine[: max(min(surplus, short), 0)]


def to_acquire(
    consumer: str, holders: Mapping[int, str | None], shares: Mapping[str, int], pivot: float
) -> list[int]:
    """What a consumer takes of the free partitions, from a pivot (0 to 1) on, and round.

    Consumers with different pivots do not compete for the same partition.
    """
    lacking = shares.get(consumer, 0) - sum(holder == consumer for holder in holders.values())
    if lacking <= 0:
        return []
    free = sorted(partition for partition, holder in holders.items() if holder not in shares)
    start = int(pivot * len(free))
    return (free[start:] + free[:start])[:lacking]


def sticky(holders: Mapping[int, str | None], weights: Mapping[str, float]) -> dict[int, str]:
    """A decision for all partitions that moves as few as possible from their holders."""
    shares = quotas(weights, len(holders))
    decided: dict[int, str] = {}
    room = Counter(shares)
    for partition, holder in sorted(holders.items()):
        if holder is not None and room[holder] > 0:
            decided[partition] = holder
            room[holder] -= 1
    short = [name for name in sorted(shares) for _ in range(room[name])]
    left = sorted(set(holders) - set(decided))
    return decided | dict(zip(left, short, strict=False))


def pinned(partitions: Collection[int], place: int, places: int) -> Sequence[int]:
    """The partitions of the consumer that is number ``place`` (from 0) of ``places``, by hand."""
    return sorted(partitions)[place::places]


def require_place(place: int, places: int) -> tuple[int, int]:
    """Refuse a ``place`` that is not one of ``places``, with InvalidArgument."""
    if not 0 <= place < places:
        raise InvalidArgument(
            f"there is no place {place} among {places}",
            hint="the first place is 0, the last is one below their number",
        )
    return place, places
