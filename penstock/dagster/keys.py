"""The keys of the assets that Penstock's control plane shows, for projects that build on them.

A key depends on the true name alone, and not on what else there is or was there first.  So it never
stands for another topic: not while the database is down, and not after a topic was deleted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import dagster as dg

from penstock.errors import InvalidArgument

#: The first part of every asset's key.
HOUSE = "penstock"
#: The assets of a topic.
ASSETS = ("log", "sequenced", "sealed", "archive", "rollup", "retention")

#: Turns a true name into the part of a key.
Slug = Callable[[str], str]

# How the marks between words are written.  Dagster makes names of ops from keys: it joins the parts
# with two underscores.  So a part never has two underscores together, and no two keys make one op.
_IN_TOPICS = str.maketrans({"/": "_", "_": "___", "-": "____"})
_IN_RELAYS = str.maketrans({"-": "_", "_": "___"})
_TOPIC = re.compile(r"[a-z0-9]+(?:[/_-][a-z0-9]+)*")
_RELAY = re.compile(r"[a-z0-9]+(?:[_-][a-z0-9]+)*")
#: What a plain name must not end in, because names with a hash do.
_LIKE_A_HASH = re.compile(r"(?:^|[a-z0-9]_)[0-9a-f]{8}$")
_LENGTH = 60
_DIGITS = 8


def topic_slug(topic: str) -> str:
    """The part of a key for a topic: ``shop_orders`` for ``shop/orders``.

    It can be read back, or it has a hash behind it.
    """
    return _plain(topic, topic.translate(_IN_TOPICS), _TOPIC) or hashed(topic)


def relay_slug(relay: str) -> str:
    """The part of a key for a relay, in whose name a dash is usual: ``shop_file``."""
    return _plain(relay, relay.translate(_IN_RELAYS), _RELAY) or hashed(relay)


def hashed(name: str, digits: int = _DIGITS) -> str:
    """Letters and digits of a name, as far as it has any, with a hash of the name behind them."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:digits]
    return f"{_readable(name)}_{digest}".strip("_")


def _readable(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:_LENGTH].strip("_")


def topic_key(topic: str, asset: str, *, database: str = "") -> dg.AssetKey:
    """The key of one of a topic's assets: ``topic_key("shop/orders", "archive")``.

    ``database`` is its name in the policy file of a fleet.
    """
    if asset not in ASSETS:
        raise InvalidArgument(f"a topic has no asset {asset!r}", hint=f"it has {', '.join(ASSETS)}")
    above = [HOUSE, *([database] if database else [])]
    return dg.AssetKey([*above, topic_slug(topic), node_name(topic, asset)])


def node_name(topic: str, asset: str) -> str:
    """The last part of a key, which is all that Dagster's graph shows: ``orders_archive``.

    It has the topic's own name, as far as that can be read.  The part before tells the topic.
    """
    own = _readable(topic.rpartition("/")[2])
    return f"{own}_{asset}" if own else asset


def _plain(name: str, written: str, usual: re.Pattern[str]) -> str:
    """The written name if no other name is written so, else nothing."""
    is_plain = usual.fullmatch(name) and len(written) <= _LENGTH
    return written if is_plain and not _LIKE_A_HASH.search(written) else ""
