"""The keys of the assets that Penstock's control plane shows, for projects that build on them."""

from __future__ import annotations

import re

import dagster as dg

from penstock.errors import InvalidArgument

#: The first part of every asset's key.
HOUSE = "penstock"
#: The assets of a topic.
ASSETS = ("log", "sequenced", "sealed", "archive", "rollup", "retention")

_LENGTH = 60


def readable(name: str) -> str:
    """A name of ``[a-z0-9_]``, as far as the true name has letters and digits."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:_LENGTH].strip("_")


def topic_key(topic: str, asset: str, *, database: str = "") -> dg.AssetKey:
    """The key of one of a topic's assets: ``topic_key("shop/orders", "archive")``.

    ``database`` is its name in the policy file of a fleet.  Of two topics that read alike, as
    ``shop/orders`` and ``shop/Orders``, the younger one has a hash in its key: copy that key from
    Dagster's page.
    """
    if asset not in ASSETS:
        raise InvalidArgument(f"a topic has no asset {asset!r}", hint=f"it has {', '.join(ASSETS)}")
    return dg.AssetKey([HOUSE, *([database] if database else []), readable(topic), asset])
