"""Receipts of events that were handed out, and how calls take them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from penstock.errors import MalformedReceipt

_HIGHEST = 2**63 - 1


class Receipt(NamedTuple):
    """The proof of holding one event of one claim; ``str()`` makes a text of it, parse reads it."""

    claim: int
    sequence: int
    token: UUID

    def __str__(self) -> str:
        return f"{self.claim}.{self.sequence}.{self.token.hex}"

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """The receipt of a text.  MalformedReceipt when it is none."""
        parts = text.split(".") if text.isascii() else []
        try:
            claim, sequence, token = parts
            found = cls(int(claim), int(sequence), UUID(hex=token))
        except ValueError:
            found = None
        if found is None or str(found) != text or not _is_possible(found):
            raise MalformedReceipt("the receipt is malformed", hint="pass it as it was returned")
        return found


#: One entry of a call: claim, first and last sequence, token.
Entry = tuple[int, int, int, UUID]


def entries_of(receipts: Sequence[Receipt], *, whole: bool) -> tuple[list[Entry], list[int]]:
    """Receipts of one claim that follow each other as one entry, and the entry of each receipt."""
    try:
        return _grouped(receipts, whole=whole)
    except (AttributeError, TypeError):
        raise MalformedReceipt(
            "what was given is no receipt", hint="Receipt.parse makes one of a text"
        ) from None


def _grouped(receipts: Sequence[Receipt], *, whole: bool) -> tuple[list[Entry], list[int]]:
    batch = _as_batch(receipts) if whole else None
    if batch is not None:
        return [batch], [0] * len(receipts)
    if not all(_is_possible(each) for each in receipts):
        raise MalformedReceipt("a receipt is malformed", hint="pass it as it was returned")
    order = sorted(range(len(receipts)), key=lambda place: _key(receipts[place]))
    entries: list[Entry] = []
    places = [0] * len(receipts)
    before = [None, *(receipts[place] for place in order)]
    for place, (last, each) in zip(order, pairwise(before), strict=True):
        assert each is not None
        follows = last is not None and _key(each) == (last.claim, last.token, last.sequence + 1)
        if whole and follows and each.sequence - entries[-1][1] < _LONGEST:
            entries[-1] = (*entries[-1][:2], each.sequence, each.token)
        else:
            entries.append((each.claim, each.sequence, each.sequence, each.token))
        places[place] = len(entries) - 1
    return entries, places


def _as_batch(receipts: Sequence[Receipt]) -> Entry | None:
    """The one entry of receipts that stand as receive has returned them; None of any others."""
    count = len(receipts)
    if count > _LONGEST or {*map(type, receipts)} != {Receipt}:
        return None
    claim, first, token = receipts[0]
    last = receipts[-1].sequence
    if not (_is_possible(receipts[0]) and _is_possible(receipts[-1])):
        return None
    if count > 1:
        # Whole columns are compared, because a loop in Python takes ten times as long.
        claims, sequences, tokens = zip(*receipts, strict=True)
        if claims.count(claim) < count or sequences != tuple(range(first, first + count)):
            return None
        # Two UUIDs are compared in Python, and two numbers are not.
        if [*map(_number, tokens)].count(token.int) < count:
            return None
    return claim, first, last, token


_number = attrgetter("int")

_LONGEST = 1_000  # events of an entry


def _key(receipt: Receipt) -> tuple[int, UUID, int]:
    return receipt.claim, receipt.token, receipt.sequence


def _is_possible(receipt: Receipt) -> bool:
    return 0 < receipt.claim <= _HIGHEST and 0 < receipt.sequence <= _HIGHEST


def columns_of(entries: Sequence[Entry]) -> dict[str, Any]:
    """The entries as arguments of a call."""
    claims, firsts, lasts, tokens = zip(*entries, strict=True)
    return {
        "claims": list(claims),
        "first_sequences": list(firsts),
        "last_sequences": list(lasts),
        "tokens": list(tokens),
    }
