"""Placements for tests."""

from __future__ import annotations

from ops.archive.placement import Placement


def on_each(*targets: str) -> Placement:
    """A copy on every target, all of which have to be there."""
    return Placement(dict.fromkeys(targets, 1), len(targets), len(targets))


def homes(placement: Placement, known_as: str, key: tuple[int, int]) -> tuple[str, ...]:
    """Where the copies of a log epoch belong while every target is there."""
    return placement.order(known_as, *key)[: placement.copies]
