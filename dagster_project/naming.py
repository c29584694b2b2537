"""Names for Dagster, which allows few characters: a readable slug and a hash of the true name.

The true name is in the metadata of every asset.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

import dagster as dg

from penstock.archive.copies import EpochKey
from penstock.errors import ConfigurationError

#: The first part of the keys of assets that belong to no topic.
HOUSE = "penstock"

_SLUG_LENGTH = 40
_EPOCH = re.compile(r"p(\d{5})-e(\d{9})")


def slug(name: str) -> str:
    """A name of ``[a-z0-9_]`` that no other name has: readable first, then a hash of the whole."""
    readable = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:_SLUG_LENGTH].strip("_")
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{readable}_{digest}" if readable else digest


def require_distinct(names: Iterable[str]) -> None:
    """ConfigurationError when two names have one slug: their assets would be mixed up."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(slug(name), name)
        if other != name:
            raise ConfigurationError(
                f"{other!r} and {name!r} have the same name in Dagster, {slug(name)}",
                hint="rename one of them",
            )


def group_of(topic: str) -> str:
    """The asset group of a topic: its address, so the groups nest like the namespaces."""
    parts = (re.sub(r"[^A-Za-z0-9]+", "_", part).strip("_") for part in topic.split("/"))
    return "/".join(part or "_" for part in parts)


def topic_key(topic: str, name: str) -> dg.AssetKey:
    """The key of one of a topic's assets."""
    return dg.AssetKey([slug(topic), name])


def relay_key(relay: str) -> dg.AssetKey:
    """The key of a relay's asset."""
    return dg.AssetKey(["relay", slug(relay)])


def house_key(name: str) -> dg.AssetKey:
    """The key of an asset that belongs to no topic."""
    return dg.AssetKey([HOUSE, name])


SEQUENCE = house_key("sequence")
SWEEP = house_key("sweep")
POLICIES = house_key("policies")
HEALTH = house_key("health")


def epochs_name(topic: str) -> str:
    """The name of the dynamic partitions that are a topic's log epochs."""
    return f"log_epochs/{slug(topic)}"


def epoch_name(key: EpochKey) -> str:
    """The partition key of a log epoch: ``p00003-e000000012``."""
    partition, log_epoch = key
    return f"p{partition:05d}-e{log_epoch:09d}"


def epoch_of(name: str) -> EpochKey:
    """(partition, log epoch) out of a partition key."""
    match = _EPOCH.fullmatch(name)
    if match is None:
        raise ConfigurationError(
            f"{name!r} names no log epoch", hint="write it like p00003-e000000012"
        )
    return int(match[1]), int(match[2])
