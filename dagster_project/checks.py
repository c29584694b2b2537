"""The checks: one op for each kind, over all topics, and not one for each topic.

A kind looks at the database once for all topics where it can.  What goes wrong with one topic is
its own failed check, and the others are still looked at.  Checks that a run makes of its own work
(copies_verified, rows_unchanged, guarded_drop) are with their assets.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import dagster as dg

from dagster_project.catalogue import Catalogue
from dagster_project.common import exists, of_database, table
from ops.hours import epochs_between
from penstock import log, subscriptions
from penstock.subscriptions import Lag
from penstock.subscriptions.dead_letters import counts
from resources.database import DatabaseResource
from resources.targets import ArchiveTargetResource

#: A partition with unread events that nobody holds for longer is told: a take-over needs a lease.
UNHELD_SECONDS = 30.0
LONG_TRANSACTION_SECONDS = 3_600.0
#: One op looks at so many: Dagster needs the square of it to load a job.
SUBJECTS_AT_ONCE = 100
#: How far back `epochs_contiguous` looks: what is older was looked at before.
CONTIGUOUS = dt.timedelta(hours=25)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check has found."""

    passed: bool
    metadata: dict[str, Any] = field(default_factory=dict)
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN


@dataclass(frozen=True, slots=True)
class World:
    """What a check looks at."""

    connection: Any
    url: str
    targets: ArchiveTargetResource
    catalogue: Catalogue


#: Looks at the world once, and returns what tells the verdict on one topic or relay.
Look = Callable[[World], Callable[[str], Verdict]]
NOT_THERE = Verdict(passed=True, metadata={"note": "the topic does not exist yet"})


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of check: what it says, of which assets, and how it looks."""

    name: str
    subjects: Mapping[dg.AssetKey, str]
    description: str
    look: Look
    blocking: bool = False
    op: str = ""


def build(catalogue: Catalogue) -> list[dg.AssetChecksDefinition]:
    """Every kind that has something to look at, in lots: see SUBJECTS_AT_ONCE."""
    return [
        _definition(kind, lot, name, catalogue)
        for kind in kinds(catalogue)
        for name, lot in _lots(catalogue, kind)
    ]


def _lots(catalogue: Catalogue, kind: Kind) -> Iterator[tuple[str, dict[dg.AssetKey, str]]]:
    subjects, name = [*kind.subjects.items()], catalogue.named(f"check_{kind.op or kind.name}")
    for start in range(0, len(subjects), SUBJECTS_AT_ONCE):
        lot = dict(subjects[start : start + SUBJECTS_AT_ONCE])
        yield f"{name}_{start // SUBJECTS_AT_ONCE + 1}" if start else name, lot


def kinds(catalogue: Catalogue) -> list[Kind]:
    """The kinds of checks."""
    limits = catalogue.policies.limits
    sequenced, archived = catalogue.keys("sequenced"), _archives(catalogue)
    relays = {catalogue.relay_key(name): name for name in catalogue.policies.relays}
    house = {catalogue.house("sequence"): ""}
    return [
        Kind("unsequenced_age", house,
             f"No event waits for its sequence for more than {limits.unsequenced} s.",
             _unsequenced_age),
        Kind("horizon_holder", house,
             "No transaction is open for so long that the database cannot remove old versions.",
             _horizon_holder),
        Kind("no_sequence_gap", sequenced,
             "The index of the log goes on without a hole or an overlap.",
             _no_sequence_gap, blocking=True),
        Kind("consumer_lag", sequenced,
             f"No subscription lets an event wait for more than {limits.consumer_lag} s.",
             _consumer_lag),
        Kind("lease_coverage", sequenced,
             "Every partition with unread events is held by a consumer.", _lease_coverage),
        Kind("dead_letters", sequenced,
             "No subscription of the topic has dead letters.", _dead_letters),
        Kind("epochs_contiguous", catalogue.keys("sealed"),
             "The log epochs that were sealed in the last day follow each other without a gap.",
             _epochs_contiguous, blocking=True),
        Kind("readable", archived,
             "The newest copy on each target can be read and is what was sealed.", _readable),
        Kind("schema_drift", archived,
             "The table of each target has the columns that this version writes.", _schema_drift),
        Kind("backlog_age", relays,
             f"No event waits for the relay for more than {limits.relay_lag} s.", _backlog_age),
        Kind("dead_letters", relays, "The relay has no dead letters.", _relay_letters,
             op="relay_dead_letters"),
    ]  # fmt: skip


def _archives(catalogue: Catalogue) -> dict[dg.AssetKey, str]:
    return {catalogue.key(each.topic, "archive"): each.topic for each in catalogue.archived()}


def _definition(
    kind: Kind, subjects: Mapping[dg.AssetKey, str], name: str, catalogue: Catalogue
) -> dg.AssetChecksDefinition:
    specs = [
        dg.AssetCheckSpec(
            kind.name, asset=key, blocking=kind.blocking, description=kind.description
        )
        for key in subjects
    ]

    @dg.multi_asset_check(name=name, specs=specs, can_subset=True)
    @of_database(catalogue.database)
    def check(
        context: dg.AssetCheckExecutionContext,
        database: DatabaseResource,
        targets: ArchiveTargetResource,
    ) -> Iterator[dg.AssetCheckResult]:
        with database.connect() as connection:
            tell = kind.look(World(connection, database.url(), targets, catalogue))
            for key in context.selected_asset_check_keys:
                found = _told(context, tell, subjects[key.asset_key])
                yield dg.AssetCheckResult(
                    asset_key=key.asset_key,
                    check_name=key.name,
                    passed=found.passed,
                    severity=found.severity,
                    metadata=found.metadata,
                )

    return check


def _told(
    context: dg.AssetCheckExecutionContext, tell: Callable[[str], Verdict], subject: str
) -> Verdict:
    """The verdict; what goes wrong with one subject stops no other."""
    try:
        return tell(subject)
    except Exception as error:
        context.log.exception(subject)
        return Verdict(passed=False, metadata={"error": f"{type(error).__name__}: {error}"})


def _unsequenced_age(world: World) -> Callable[[str], Verdict]:
    now = log.status(world.connection)
    age, limit = float(now.unsequenced_age_seconds), world.catalogue.policies.limits.unsequenced
    metadata = {"events waiting": now.unsequenced_events, "oldest waits for (s)": age}
    return lambda _: Verdict(age <= limit, metadata, dg.AssetCheckSeverity.ERROR)


def _horizon_holder(world: World) -> Callable[[str], Verdict]:
    oldest = float(log.status(world.connection).oldest_transaction_seconds or 0.0)
    return lambda _: Verdict(oldest <= LONG_TRANSACTION_SECONDS, {"oldest transaction (s)": oldest})


def _no_sequence_gap(world: World) -> Callable[[str], Verdict]:
    def tell(topic: str) -> Verdict:
        gaps = log.gaps(world.connection, topic) if exists(world.connection, topic) else []
        rows = [(gap.partition, gap.expected, gap.found) for gap in gaps]
        metadata = {"gaps": table(("partition", "expected", "found"), rows)} if gaps else {}
        return Verdict(not gaps, metadata, dg.AssetCheckSeverity.ERROR)

    return tell


def _by_topic(lags: list[Lag]) -> dict[str, list[Lag]]:
    found: dict[str, list[Lag]] = {}
    for each in lags:
        found.setdefault(each.topic, []).append(each)
    return found


def _lag_verdict(lags: list[Lag], limit: float) -> Verdict:
    """Whether nobody is late, in a sentence, and who waits for longest."""
    late = [each for each in lags if each.lag_seconds > limit]
    waiting = sum(each.lag_events for each in lags)
    longest = max((each.lag_seconds for each in lags), default=0.0)
    said = "Nothing waits."
    if waiting:
        found = "more than" if late else "within"
        said = (
            f"{waiting} events wait, the first for {longest:.0f} s: {found} the limit of {limit} s."
        )
    rows = [
        (each.subscription, each.partition, each.lag_events, f"{each.lag_seconds:.1f}",
         each.holder or "nobody")
        for each in sorted(late or lags, key=lambda each: -each.lag_seconds)[:50]
    ]  # fmt: skip
    columns = ("subscription", "partition", "events", "seconds", "held by")
    return Verdict(
        not late,
        {
            "verdict": said,
            "events waiting": waiting,
            "longest wait (s)": float(longest),
            "limit (s)": float(limit),
            "subscriptions": table(columns, rows),
        },
    )


def _consumer_lag(world: World) -> Callable[[str], Verdict]:
    lags = _by_topic(subscriptions.lag(world.connection))
    limit = world.catalogue.policies.limits.consumer_lag
    return lambda topic: _lag_verdict(lags.get(topic, []), limit)


def _lease_coverage(world: World) -> Callable[[str], Verdict]:
    lags = _by_topic(subscriptions.unleased_cursors(world.connection))

    def tell(topic: str) -> Verdict:
        free = [each for each in lags.get(topic, []) if each.lag_seconds > UNHELD_SECONDS]
        rows = [(e.subscription, e.partition, e.lag_events, f"{e.lag_seconds:.0f}") for e in free]
        metadata: dict[str, Any] = {"partitions that nobody holds": len(free)}
        if free:
            metadata["which"] = table(("subscription", "partition", "events", "seconds"), rows)
            metadata["what to do"] = "start a consumer of the subscription, or unsubscribe it"
        return Verdict(not free, metadata)

    return tell


def _dead_letters(world: World) -> Callable[[str], Verdict]:
    lags = _by_topic(subscriptions.lag(world.connection))
    dead = {each.subscription: each.dead for each in counts(world.connection)}

    def tell(topic: str) -> Verdict:
        readers = sorted({each.subscription for each in lags.get(topic, [])})
        return _letters({name: dead.get(name, 0) for name in readers})

    return tell


def _letters(dead: dict[str, int]) -> Verdict:
    rows = [(name, count) for name, count in dead.items() if count]
    metadata: dict[str, Any] = {"dead letters": sum(dead.values())}
    if rows:
        metadata["of"] = table(("subscription", "dead letters"), rows)
        metadata["what to do"] = f"penstock dead-letter list {rows[0][0]}"
    return Verdict(not rows, metadata)


def _epochs_contiguous(world: World) -> Callable[[str], Verdict]:
    end = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)

    def tell(topic: str) -> Verdict:
        if not exists(world.connection, topic):
            return NOT_THERE
        epochs = epochs_between(world.connection, topic, end - CONTIGUOUS, end)
        gaps = [
            (after.partition, after.log_epoch, before.last_sequence + 1, after.first_sequence)
            for before, after in pairwise(epochs)
            if before.partition == after.partition
            and (before.log_epoch + 1, before.last_sequence + 1)
            != (after.log_epoch, after.first_sequence)
        ]
        metadata: dict[str, Any] = {"log epochs": len(epochs)}
        if gaps:
            columns = ("partition", "log epoch", "expected first", "first")
            metadata["gaps"] = table(columns, gaps)
        return Verdict(not gaps, metadata, dg.AssetCheckSeverity.ERROR)

    return tell


def _readable(world: World) -> Callable[[str], Verdict]:
    from ops.archive.sampling import read_newest

    def tell(topic: str) -> Verdict:
        if not exists(world.connection, topic):
            return NOT_THERE
        places, unnamed = world.targets.usable(world.catalogue.policies.of_topic(topic).archive)
        found = [*unnamed.items()]
        found += [(each.name, read_newest(world.url, topic, each)) for each in places]
        columns = ("target", "what was found")
        damaged = [said for _, said in found if said]
        rows = [(name, said or "whole") for name, said in found]
        return Verdict(not damaged, {"newest copies": table(columns, rows)})

    return tell


def _schema_drift(world: World) -> Callable[[str], Verdict]:
    from ops.archive.sampling import schema_differences

    def tell(topic: str) -> Verdict:
        if not exists(world.connection, topic):
            return NOT_THERE
        places, _ = world.targets.usable(world.catalogue.policies.of_topic(topic).archive)
        rows = [
            (each.name, difference)
            for each in places
            for difference in schema_differences(world.url, topic, each)
        ]
        metadata = {"differences": table(("target", "difference"), rows)} if rows else {}
        return Verdict(not rows, metadata)

    return tell


def _backlog_age(world: World) -> Callable[[str], Verdict]:
    lags = subscriptions.lag(world.connection)
    limit = world.catalogue.policies.limits.relay_lag

    def tell(relay: str) -> Verdict:
        name = world.catalogue.policies.relays[relay].subscription
        return _lag_verdict([each for each in lags if each.subscription == name], limit)

    return tell


def _relay_letters(world: World) -> Callable[[str], Verdict]:
    dead = {each.subscription: each.dead for each in counts(world.connection)}

    def tell(relay: str) -> Verdict:
        name = world.catalogue.policies.relays[relay].subscription
        return _letters({name: dead.get(name, 0)})

    return tell
