"""Names for Dagster, which allows few characters: readable ones.

Two true names that read alike are kept apart: the older one gets the plain name, the other one a
hash of its true name behind it.  The true name is in the metadata of every asset.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable

import dagster as dg

from penstock.dagster.keys import HOUSE, readable

#: The part of the key before a relay's name; no topic gets it.
RELAY = "relay"


def slugs(names: Iterable[str], reserved: Collection[str] = ()) -> dict[str, str]:
    """For each name one of ``[a-z0-9_]`` that no other has; who comes first gets the plain one."""
    found: dict[str, str] = {}
    taken = set(reserved)
    for name in names:
        if name not in found:
            found[name] = _free(name, taken)
            taken.add(found[name])
    return found


def _free(name: str, taken: Collection[str]) -> str:
    plain = readable(name)
    if plain and plain not in taken:
        return plain
    digest = hashlib.sha256(name.encode()).hexdigest()
    lengths = range(8, len(digest) + 1)
    tried = (f"{plain}_{digest[:length]}".strip("_") for length in lengths)
    return next(each for each in tried if each not in taken)


def group_of(topic: str) -> str:
    """The asset group of a topic: the path of its namespace."""
    parts = (re.sub(r"[^A-Za-z0-9]+", "_", part).strip("_") for part in topic.split("/")[:-1])
    return "/".join(part or "_" for part in parts) or HOUSE


def house_key(name: str, *database: str) -> dg.AssetKey:
    """The key of an asset that belongs to no topic, of a database of the policy file."""
    return dg.AssetKey([HOUSE, *database, name])
