"""What the definitions share: descriptions of a topic's assets, and tables for metadata."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict, TypeVar, get_type_hints

import dagster as dg

from dagster_project.naming import epochs_name, group_of
from ops.policies.file import TopicPolicy
from penstock.records import LogEpoch
from penstock.topics import names

F = TypeVar("F", bound=Callable[..., Any])

#: One Spark at a time on a small machine: `tools/dagster.yaml` gives every pool one slot.
SPARK_POOL = "spark"
HOUSE_GROUP = "operations"


class AssetOptions(TypedDict):
    """What all assets of a topic have in common."""

    group_name: str
    owners: list[str]
    metadata: dict[str, Any]


def topic_options(topic: str, policy: TopicPolicy) -> AssetOptions:
    """Group, owner and true name of a topic's assets."""
    return {
        "group_name": group_of(topic),
        "owners": [policy.owner] if policy.owner else [],
        "metadata": {"penstock/topic": topic},
    }


def epochs_partitions(topic: str) -> dg.DynamicPartitionsDefinition:
    """A topic's log epochs as dynamic partitions."""
    return dg.DynamicPartitionsDefinition(name=epochs_name(topic))


def evaluated(function: F) -> F:
    """Annotations as objects: Dagster cannot read a context's from the text that we have to write.

    It stands directly above each function with a `context`.
    """
    function.__annotations__ = get_type_hints(function)
    return function


@contextmanager
def beta_allowed() -> Iterator[None]:
    """Backfill policies and observable assets are what we need, and Dagster calls them beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        yield


def exists(connection: Any, topic: str) -> bool:
    """Whether the topic is in the database: the policy file may know it sooner."""
    return any(each.address == topic for each in names.list_topics(connection, _parent(topic)))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> dg.MarkdownMetadataValue:
    """A table for metadata."""
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    lines += [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]
    return dg.MetadataValue.md("\n".join(lines))


def epoch_metadata(epoch: LogEpoch) -> Mapping[str, Any]:
    """What a sealed log epoch is."""
    found: dict[str, Any] = {
        "partition": epoch.partition,
        "log epoch": epoch.log_epoch,
        "first sequence": epoch.first_sequence,
        "last sequence": epoch.last_sequence,
        "dagster/row_count": epoch.event_count,
        "checksum": epoch.checksum,
    }
    if epoch.sealed_at is not None:
        found["sealed at"] = dg.MetadataValue.timestamp(epoch.sealed_at)
    return found


def _parent(topic: str) -> str:
    return topic.rpartition("/")[0]


def _cell(value: Any) -> str:
    return str("" if value is None else value).replace("|", "\\|").replace("\n", " ")
