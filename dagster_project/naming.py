"""Names for Dagster, which allows few characters: readable ones.

Two true names that read alike are kept apart: the older one gets the plain name, the other one a
hash of its true name behind it.  The true name is in the metadata of every asset.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable

import dagster as dg

#: The first part of every asset's key.
HOUSE = "penstock"
#: The part of the key before a relay's name; no topic gets it.
RELAY = "relay"

_LENGTH = 60


def readable(name: str) -> str:
    """A name of ``[a-z0-9_]``, as far as the true name has letters and digits."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:_LENGTH].strip("_")


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


def house_key(name: str) -> dg.AssetKey:
    """The key of an asset that belongs to no topic."""
    return dg.AssetKey([HOUSE, name])


SEQUENCE = house_key("sequence")
SWEEP = house_key("sweep")
STORAGE = house_key("storage")
POLICIES = house_key("policies")
HEALTH = house_key("health")
CANARY = house_key("canary")
