"""``penstock target audit``: read the copies of topics on targets back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ops.archive.auditing import Share, audit_copies
from ops.archive.copy_readings import Reader
from ops.archive.read_back import plain_reader, spark_reader
from ops.backfill.missing import audit_files
from ops.duties.engine import SPARK, choose
from ops.seal import copies_of
from penstock.archive.targets import Target
from penstock.database import connect
from penstock.errors import ConfigurationError, TargetUnavailable
from penstock.topics.names import list_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What an audit says of a damaged copy names so many of a topic at most.
_MOST_NAMED = 20


@dataclass(slots=True)
class Found:
    """A row for each topic on each target, and a sentence for each thing that is wrong."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


def audit_targets(
    url: str,
    topics: Sequence[str] | None,
    places: Sequence[Target],
    *,
    days: int,
    engine: str,
    spark: Callable[[], SparkSession],
) -> Found:
    """Read what is recorded on the places; one that is not there stops no other."""
    if not places:
        raise ConfigurationError(
            "no target is named", hint="say --target NAME=DIRECTORY, or name it in the policy file"
        )
    found = Found()
    for topic in _present(url) if topics is None else topics:
        for place, copies in _held(url, topic, places).items():
            is_much = choose(engine, copies // days) == SPARK
            read = spark_reader(spark, url) if is_much else plain_reader(url)
            _audit(found, url, topic, place, read=read, share=Share.of_day(days))
    return found


def _present(url: str) -> list[str]:
    with connect(url, application_name="penstock audit") as connection:
        return [each.address for each in list_topics(connection)]


def _held(url: str, topic: str, places: Sequence[Target]) -> dict[Target, int]:
    """How many copies of a topic each place has, where it has any."""
    with connect(url, application_name="penstock audit") as connection:
        held = [each.target for each in copies_of(connection, topic) if each.state == "verified"]
    return {each: held.count(each.name) for each in places if each.name in held}


def _audit(
    found: Found, url: str, topic: str, place: Target, *, read: Reader, share: Share
) -> None:
    row: dict[str, Any] = {"topic": topic, "target": place.name}
    try:
        gone = audit_files(url, topic, place)
        seen = audit_copies(read, url, topic, place, share)
    except TargetUnavailable as error:
        found.rows.append(row | {"copies": 0, "events": 0, "damaged": None})
        found.said.append(str(error))
        return
    damaged = (*gone, *seen.forgotten)
    found.rows.append(row | {"copies": seen.copies, "events": seen.events, "damaged": len(damaged)})
    for each in damaged[:_MOST_NAMED]:
        found.said.append(
            f"{place.name}: log epoch {each.log_epoch} of {topic}/{each.partition} is damaged: "
            f"{each.reason}"
        )
    if damaged:
        found.said.append(f"make them again: penstock backfill {topic}")
