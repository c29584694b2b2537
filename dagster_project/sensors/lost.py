"""Sensor `lost_copies`: asks the database for a backfill of what is recorded as missing.

It only inserts a request, as the command and the HTTP gateway do.  The sensor `backfills` sees to
its run.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from dagster_project.catalogue import Catalogue
from dagster_project.triggers import (
    Attempt,
    cursor_of,
    dump_cursor,
    others_go_on,
    result,
    sense_while_up,
)
from ops.backfill.asking import ask_once
from ops.backfill.requests import Window
from ops.hours import LostCopy, lost_copies
from ops.policies.file import Policies
from ops.policies.policy import FOLLOWS_ANOTHER, follows
from ops.policies.settings import TopicPolicy
from ops.seal import copies_of, lacking, missing_copies
from penstock.archive.copies import EpochKey, key_of
from penstock.records import as_time
from penstock.topics.names import list_topics
from resources.database import DatabaseResource

VERSION = 1
#: A tick looks at so many, those that were lost last; when there are more, at each topic.
MOST_COPIES = 1_000


def build(catalogue: Catalogue) -> dg.SensorDefinition:
    """The sensor."""

    @dg.sensor(
        name=catalogue.named("lost_copies"),
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Asks for a backfill of copies that are recorded as missing: a run of clean or "
        "of the audit has found them gone or damaged. One that is lost again is asked for again; "
        "one that cannot be made, with a growing pause.",
    )
    @sense_while_up(catalogue.database)
    def sensor(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SensorResult:
        policies = database.policies()
        held = cursor_of(context, VERSION).get("asked", {})
        asked: dict[str, list[object]] = {}
        made: list[int] = []
        with database.connect() as connection:
            if not follows(connection, policies):
                return result([], context.cursor, f"{FOLLOWS_ANOTHER}: nothing is asked for")
            lost: dict[tuple[str, str], list[LostCopy]] = {}
            for each in _lost(context, connection, policies):
                lost.setdefault((each.topic, each.target), []).append(each)
            for (topic, target), copies in lost.items():
                place = f"{topic}@{target}"
                attempt = Attempt.next_of(held.get(place), _fingerprint(copies), time.time())
                if attempt is None:
                    asked[place] = held[place]
                    continue
                with others_go_on(context, place):
                    request = ask_once(connection, topic, target, _window(copies))
                    asked[place] = attempt.dump()
                    made += [request.request] if request else []
        said = f"asked for: {made}" if made else "no copy is missing, or it was asked for"
        return result([], dump_cursor(VERSION, asked=asked), said)

    return sensor


def _lost(
    context: dg.SensorEvaluationContext, connection: Any, policies: Policies
) -> Iterator[LostCopy]:
    """What counts of the newest losses, or of all losses when there are more than a tick reads.

    Targets that have left the policy keep their losses, which could hide all others.
    """
    newest = lost_copies(connection, MOST_COPIES)
    if len(newest) < MOST_COPIES:
        yield from _wanted(connection, policies, newest)
        return
    for each in list_topics(connection):
        with others_go_on(context, each.address):
            yield from _lost_of(connection, policies.of_topic(each.address))


def _lost_of(connection: Any, policy: TopicPolicy) -> list[LostCopy]:
    """The same of one topic: of the log epochs with too few copies, those that were recorded."""
    topic, placement = policy.topic, policy.placement
    if placement is None:
        return []
    few = {
        key_of(epoch): epoch
        for target in policy.archive
        for epoch in missing_copies(connection, topic, target)
        if placement.lacking(epoch)
    }
    return [
        LostCopy(
            topic, c.partition, c.log_epoch, c.target, c.detail or "", as_time(c.changed_at),
            as_time(few[c.partition, c.log_epoch].sealed_at),
        )
        for c in (copies_of(connection, topic) if few else ())
        if c.state == "missing" and c.target in policy.archive and (c.partition, c.log_epoch) in few
    ]  # fmt: skip


def _wanted(connection: Any, policies: Policies, lost: Sequence[LostCopy]) -> Iterator[LostCopy]:
    """Those that count: on a target of the policy, of log epochs with too few copies elsewhere."""
    few: dict[str, set[EpochKey]] = {}
    for each in lost:
        policy = policies.of_topic(each.topic)
        if each.target not in policy.archive or policy.placement is None:
            continue
        if each.topic not in few:
            found = lacking(connection, each.topic, policy.placement)
            few[each.topic] = {key_of(epoch) for epoch in found}
        if (each.partition, each.log_epoch) in few[each.topic]:
            yield each


def _fingerprint(copies: Sequence[LostCopy]) -> str:
    """Since when each is missing is part of it: one that is lost a second time is new work."""
    told = sorted(f"{c.partition}:{c.log_epoch}:{c.changed_at.isoformat()}" for c in copies)
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def _window(copies: Sequence[LostCopy]) -> Window:
    """The time in which they were sealed."""
    times = [each.sealed_at for each in copies]
    return Window(from_time=min(times), to_time=max(times) + dt.timedelta(microseconds=1))
