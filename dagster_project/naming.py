"""Names for Dagster, which allows few characters: readable ones.

They follow from the true names alone (:mod:`penstock.dagster.keys`).  The true name is in the
metadata of every asset.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

import dagster as dg

from penstock.dagster.keys import HOUSE, Slug, hashed

#: The part of the key before a relay's name; no topic gets it, because each has a namespace.
RELAY = "relay"
#: Databases whose own names would be taken for something else; none has underscores together.
RELAY_DATABASE, HOUSE_DATABASE = f"{RELAY}___database", f"{HOUSE}___database"
#: So long is a tag of a run at most.
_LONGEST_TAG = 63
_ALL_DIGITS = 64
_FEW_DIGITS = 8


def slugs(names: Iterable[str], slug: Slug) -> dict[str, str]:
    """For each name one of ``[a-z0-9_]`` that no other has.

    Two names have one short hash only if somebody has looked for them.  Then each gets a long one:
    whoever may create topics must not be able to keep the definitions from loading.
    """
    found = {name: slug(name) for name in names}
    times = Counter(found.values())
    return {
        name: each if times[each] == 1 else hashed(name, _ALL_DIGITS)
        for name, each in found.items()
    }


def tag(text: str) -> str:
    """A text as the value of a tag: a long one is cut, and has a hash of all of it instead."""
    if len(text) <= _LONGEST_TAG:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_FEW_DIGITS]
    return f"{text[: _LONGEST_TAG - len(digest) - 1]}-{digest}"


def groups(topics: Iterable[str]) -> dict[str, str]:
    """The asset group of each topic: its namespace, and its own name where that has several."""
    topics = {*topics}
    of_namespaces = Counter(_namespace(topic) for topic in topics)
    return {
        topic: group_of(topic if of_namespaces[_namespace(topic)] > 1 else _namespace(topic))
        for topic in topics
    }


def _namespace(topic: str) -> str:
    return topic.rpartition("/")[0]


def group_of(path: str) -> str:
    """The asset group of a topic or namespace: its path."""
    parts = (re.sub(r"[^A-Za-z0-9]+", "_", part).strip("_") for part in path.split("/"))
    return "/".join(part or "_" for part in parts if part or path) or HOUSE


def house_key(name: str, *database: str) -> dg.AssetKey:
    """The key of an asset that belongs to no topic, of a database of the policy file."""
    return dg.AssetKey([HOUSE, *database, name])
