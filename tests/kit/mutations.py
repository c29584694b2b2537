"""Texts that differ from a good one in a little, drawn by a seed."""

from __future__ import annotations

import random
import string
from collections.abc import Callable

_LETTERS = string.ascii_letters + string.digits + "-_.=+/;:,\"'()%&?@ *"


def mutated(text: str, chance: random.Random, other: str = "") -> str:
    """Another text; ``other`` is a good one of somebody else, from which a piece may come."""
    while True:
        found = chance.choice(_WAYS)(text, chance, other or text)
        # Nothing that a header could not carry, or that its reader strips.
        if found != text and found.strip() == found:
            return found


def _replaced(text: str, chance: random.Random, _: str) -> str:
    at = chance.randrange(len(text))
    return text[:at] + chance.choice(_LETTERS) + text[at + 1 :]


def _flipped(text: str, chance: random.Random, _: str) -> str:
    """One bit of a letter, where a letter comes of it."""
    at = chance.randrange(len(text))
    letter = chr(ord(text[at]) ^ (1 << chance.randrange(6)))
    return text[:at] + letter + text[at + 1 :] if letter in _LETTERS else text


def _without(text: str, chance: random.Random, _: str) -> str:
    at = chance.randrange(len(text))
    return text[:at] + text[at + chance.randint(1, 3) :]


def _with_more(text: str, chance: random.Random, _: str) -> str:
    at = chance.randint(0, len(text))
    return text[:at] + chance.choice(_LETTERS) + text[at:]


def _doubled(text: str, chance: random.Random, _: str) -> str:
    at = chance.randrange(len(text))
    piece = text[at : at + chance.randint(1, 20)]
    return text[:at] + piece + text[at:]


def _swapped(text: str, chance: random.Random, _: str) -> str:
    at = chance.randrange(max(1, len(text) - 1))
    return text[:at] + text[at + 1 : at + 2] + text[at : at + 1] + text[at + 2 :]


def _cut(text: str, chance: random.Random, _: str) -> str:
    return text[: chance.randint(0, len(text))]


def _other_case(text: str, chance: random.Random, _: str) -> str:
    at = chance.randrange(len(text))
    return text[:at] + text[at].swapcase() + text[at + 1 :]


def _spliced(text: str, chance: random.Random, other: str) -> str:
    """A piece of a good one of somebody else."""
    at = chance.randrange(len(text))
    end = at + chance.randint(1, 64)
    return text[:at] + other[at:end] + text[end:]


_WAYS: tuple[Callable[[str, random.Random, str], str], ...] = (
    _replaced, _flipped, _without, _with_more, _doubled, _swapped, _cut, _other_case, _spliced,
)  # fmt: skip
