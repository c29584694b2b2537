"""The arithmetic of sharing partitions out: pure functions, the same for every registry.

Shares go by weight with largest remainders (Hamilton), ties by name, so that every partition has a
taker, shares at equal weights differ by one at most, and the same input gives the same shares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

#: Weights count to a millionth: with whole numbers, no rounding makes two consumers differ.
UNITS = 10**6


def quotas(weights: Mapping[str, float], partitions: int) -> dict[str, int]:
    """How many partitions each consumer is to hold; together they are all."""
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
    """What a consumer gives back: smallest backlog first, and only while somebody is short.

    ``holders`` are the active partitions.  What is free serves those who are short first.
    """
    held = _held(holders)
    free = sum(holder not in shares for holder in holders.values())
    short = sum(max(share - len(held.get(name, ())), 0) for name, share in shares.items()) - free
    mine = held.get(consumer, [])
    surplus = max(min(len(mine) - shares.get(consumer, 0), short), 0)
    return sorted(mine, key=lambda partition: (backlogs.get(partition, 0), partition))[:surplus]


def to_acquire(
    consumer: str, holders: Mapping[int, str | None], shares: Mapping[str, int], pivot: float
) -> list[int]:
    """What a consumer takes of what is free, from a pivot (0 to 1) on and round.

    Consumers with pivots of their own do not meet at the same partition.
    """
    free = sorted(partition for partition, holder in holders.items() if holder not in shares)
    mine = sum(holder == consumer for holder in holders.values())
    start = int(pivot * len(free))
    return (free[start:] + free[:start])[: max(shares.get(consumer, 0) - mine, 0)]


def sticky(holders: Mapping[int, str | None], weights: Mapping[str, float]) -> dict[int, str]:
    """A decision for all partitions that moves as few as it can from those who hold them."""
    shares = quotas(weights, len(holders))
    decided: dict[int, str] = {}
    for consumer, held in _held(holders).items():
        for partition in sorted(held)[: shares.get(consumer, 0)]:
            decided[partition] = consumer
    kept = Counter(decided.values())
    short = [name for name in sorted(shares) for _ in range(shares[name] - kept[name])]
    left = sorted(set(holders) - set(decided))
    return decided | dict(zip(left, short, strict=False))


def pinned(partitions: Collection[int], place: int, places: int) -> Sequence[int]:
    """The partitions of the consumer that is number ``place`` (from 0) of ``places``, by hand."""
    return sorted(partitions)[place::places]


def _held(holders: Mapping[int, str | None]) -> dict[str, list[int]]:
    held: dict[str, list[int]] = {}
    for partition, holder in holders.items():
        if holder is not None:
            held.setdefault(holder, []).append(partition)
    return held
