"""Probes: what has to hold of an installation, each looked at by one function.

`penstock verify` makes them on the command line, and Dagster as checks of its assets.  A probe
looks at the world once, for all topics or relays where it can, and returns what tells the verdict
on one of them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ops.canary import Canary, fly
from ops.health import health
from ops.hours import epochs_between
from ops.lateness import lateness, of_queue, queue_names
from ops.policies.file import Policies
from ops.policies.policy import awaited, drift, is_subscribed, other_files, set_by_hand
from ops.policies.settings import HealthLimits
from penstock import database, log, subscriptions
from penstock.doctor import Severity
from penstock.doctor.findings import shell
from penstock.records import PartitionRange
from penstock.subscriptions import Lag
from penstock.subscriptions.dead_letters import counts
from penstock.subscriptions.relay_groups import by_quorum
from penstock.topics import names

if TYPE_CHECKING:
    from penstock.archive.targets import Target

#: What a probe is about: each topic, its log epochs, each archived topic, each relay, everything.
TOPIC, SEALED, ARCHIVE, RELAY, HOUSE = SCOPES = ("topic", "sealed", "archive", "relay", "house")

#: The one that goes on where the last look at a topic ended.
NO_SEQUENCE_GAP = "no_sequence_gap"
#: A partition with unread events that nobody holds for longer is told: a take-over needs a lease.
UNHELD_SECONDS = 30.0
LONG_TRANSACTION_SECONDS = 3_600.0
#: How far back `epochs_contiguous` looks: what is older was looked at before.
CONTIGUOUS = dt.timedelta(hours=25)
#: How often `no_sequence_gap` looks at what it has found whole before.
WHOLE_LOOK = dt.timedelta(days=1)
_MOST_LAGS = 50


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a report."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    """What a probe has found: texts, numbers and tables.  ``is_error``: somebody has to come."""

    passed: bool
    found: dict[str, Any] = field(default_factory=dict)
    is_error: bool = False
    #: What the next look may begin with, where somebody keeps it.
    kept: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class World:
    """What a probe looks at.

    ``usable`` gives the archive targets of these names, and says why others cannot be used.
    ``kept`` gives what the last verdict on a topic has kept; without it a look begins anew.
    """

    connection: Any
    url: str
    policies: Policies
    usable: Callable[[Iterable[str]], tuple[list[Target], dict[str, str]]]
    kept: Callable[[str], Mapping[str, Any] | None] = lambda _: None
    #: Who has a second for all topics looks at no more of one log; see `TOO_MUCH`.
    most_events: int | None = None
    _there: dict[str, frozenset[str]] = field(default_factory=dict)

    def has(self, topic: str) -> bool:
        """Whether the topic is in the database: the policy file may know it sooner.

        A namespace is listed once, and not for each of its topics.
        """
        parent = topic.rpartition("/")[0]
        if parent not in self._there:
            found = names.list_topics(self.connection, parent)
            self._there[parent] = frozenset(each.address for each in found)
        return topic in self._there[parent]

    def is_there(self, probe: Probe, subject: str) -> bool:
        """Whether the topic that a probe is about is in the database."""
        if probe.scope == HOUSE:
            return True
        if probe.scope != RELAY:
            return self.has(subject)
        relay = self.policies.relays[subject]
        return self.has(relay.topic) or is_subscribed(self.connection, relay)


Look = Callable[[World], Callable[[str], ProbeVerdict]]
NOT_THERE = ProbeVerdict(passed=True, found={"note": "the topic does not exist yet"})
NO_SUBSCRIPTION = ProbeVerdict(
    passed=True, found={"note": "the relay has no subscription: the check policy_drift tells of it"}
)
#: Nothing was looked at.
TOO_MUCH = ProbeVerdict(passed=True, found={"note": "there is more to look at than this look may"})


@dataclass(frozen=True, slots=True)
class Probe:
    """What has to hold, of what, and how it is looked at.

    ``blocking``: what comes after must not go on when it fails.
    """

    name: str
    scope: str
    about: str
    look: Look
    blocking: bool = False


def probes(limits: HealthLimits) -> list[Probe]:
    """The probes that Dagster makes of its topics and relays; all are cheap except two.

    `readable` and `schema_drift` read from the targets.
    """
    return [
        Probe("unsequenced_age", HOUSE,
              f"No event waits for its sequence for more than {limits.unsequenced} s.",
              _unsequenced_age),
        Probe("horizon_holder", HOUSE,
              "No transaction is open for so long that the database cannot remove old versions.",
              _horizon_holder),
        Probe(NO_SEQUENCE_GAP, TOPIC,
              "The index of the log goes on without a hole or an overlap: what is new since the "
              "last look, and once a day all of it.",
              no_sequence_gap, blocking=True),
        Probe("consumer_lag", TOPIC,
              f"No subscription lets an event wait for more than {limits.consumer_lag} s.",
              _consumer_lag),
        Probe("lease_coverage", TOPIC,
              "Every partition with unread events is held by a consumer.", _lease_coverage),
        Probe("dead_letters", TOPIC,
              "No subscription of the topic has dead letters.", _dead_letters),
        Probe("epochs_contiguous", SEALED,
              "The log epochs that were sealed in the last day follow each other without a gap.",
              _epochs_contiguous, blocking=True),
        Probe("readable", ARCHIVE,
              "The newest copy on each target can be read and is what was sealed.", _readable),
        Probe("schema_drift", ARCHIVE,
              "The table of each target has the columns that this version writes.", _schema_drift),
        Probe("backlog_age", RELAY,
              f"No event waits for the relay for more than {limits.relay_lag} s.", _backlog_age),
        Probe("dead_letters", RELAY, "The relay has no dead letters.", _relay_letters),
    ]  # fmt: skip


#: The probes of the whole installation that have assets of their own in Dagster.
POLICY_DRIFT = Probe(
    "policy_drift",
    HOUSE,
    "The database follows the policy file; what is not there yet is named, and is no drift.",
    lambda w: partial(_drift, w),
)
NO_ERRORS = Probe(
    "no_errors", HOUSE, "Nothing is wrong that needs somebody now.", lambda w: partial(_errors, w)
)
END_TO_END = Probe(
    "end_to_end",
    HOUSE,
    "An event goes the whole way, published, sequenced and consumed, within its limit.",
    lambda w: partial(_end_to_end, w),
)


def _unsequenced_age(world: World) -> Callable[[str], ProbeVerdict]:
    now = log.status(world.connection)
    age, limit = float(now.unsequenced_age_seconds), world.policies.limits.unsequenced
    found = {"events waiting": now.unsequenced_events, "oldest waits for (s)": age}
    return lambda _: ProbeVerdict(age <= limit, found, is_error=True)


def _horizon_holder(world: World) -> Callable[[str], ProbeVerdict]:
    oldest = float(log.status(world.connection).oldest_transaction_seconds or 0.0)
    return lambda _: ProbeVerdict(
        oldest <= LONG_TRANSACTION_SECONDS, {"oldest transaction (s)": oldest}
    )


def no_sequence_gap(world: World) -> Callable[[str], ProbeVerdict]:
    """Whether the index of a topic goes on without a hole.

    A sequence never changes, so what was whole at the last look is looked at again once a day only.
    """

    def tell(topic: str) -> ProbeVerdict:
        if not world.has(topic):
            return NOT_THERE
        ranges = names.partition_ranges(world.connection, topic)
        at, known = _known_whole(world.kept(topic), ranges)
        events = sum(
            max(0, part.high_watermark - max(low, part.low_sequence - 1))
            for part, low in zip(ranges, known, strict=True)
        )
        if world.most_events is not None and events > world.most_events:
            return TOO_MUCH
        gaps = log.gaps(world.connection, topic, known)
        found: dict[str, Any] = {"events looked at": events, "all of it was looked at": at}
        if gaps:
            rows = [(gap.partition, gap.expected, gap.found) for gap in gaps]
            found["gaps"] = Table(("partition", "expected", "found"), rows)
            return ProbeVerdict(False, found, is_error=True)
        positions = [[part.partition_id, part.history, part.high_watermark] for part in ranges]
        return ProbeVerdict(True, found, is_error=True, kept={"at": at, "positions": positions})

    return tell


def _known_whole(
    kept: Mapping[str, Any] | None, ranges: Sequence[PartitionRange]
) -> tuple[str, list[int]]:
    """When all was last looked at, and up to which sequence each partition was whole since.

    Of a partition that is new, has another history, or is one of another topic, nothing is known.
    """
    now = dt.datetime.now(dt.UTC)
    if kept is None or now - dt.datetime.fromisoformat(kept["at"]) > WHOLE_LOOK:
        return now.isoformat(timespec="seconds"), [0] * len(ranges)
    known = [_known_of(part, seen) for part, seen in zip(ranges, kept["positions"], strict=False)]
    return kept["at"], known + [0] * (len(ranges) - len(known))


def _known_of(part: PartitionRange, seen: Any) -> int:
    """A topic can be deleted and made anew under its name, or two can change their names.

    Its partitions have other ids then, and histories that begin at 1 again.
    """
    match seen:
        case [part.partition_id, part.history, int(position)] if position <= part.high_watermark:
            return position
    return 0


def _by_topic(lags: list[Lag]) -> dict[str, list[Lag]]:
    found: dict[str, list[Lag]] = {}
    for each in lags:
        found.setdefault(each.topic, []).append(each)
    return found


def _lag_verdict(lags: Sequence[Lag], limit: float) -> ProbeVerdict:
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
        for each in sorted(late or lags, key=lambda each: -each.lag_seconds)[:_MOST_LAGS]
    ]  # fmt: skip
    columns = ("subscription", "partition", "events", "seconds", "held by")
    return ProbeVerdict(
        not late,
        {
            "verdict": said,
            "events waiting": waiting,
            "longest wait (s)": float(longest),
            "limit (s)": float(limit),
            "subscriptions": Table(columns, rows),
        },
    )


def _consumer_lag(world: World) -> Callable[[str], ProbeVerdict]:
    lags = _by_topic(lateness(world.connection))
    limit = world.policies.limits.consumer_lag
    return lambda topic: _lag_verdict(lags.get(topic, []), limit)


def _lease_coverage(world: World) -> Callable[[str], ProbeVerdict]:
    queues = queue_names(world.connection)  # nobody leases a partition of one
    unleased = subscriptions.unleased_cursors(world.connection)
    lags = _by_topic([each for each in unleased if each.subscription not in queues])

    def tell(topic: str) -> ProbeVerdict:
        free = [each for each in lags.get(topic, []) if each.lag_seconds > UNHELD_SECONDS]
        rows = [(e.subscription, e.partition, e.lag_events, f"{e.lag_seconds:.0f}") for e in free]
        found: dict[str, Any] = {"partitions that nobody holds": len(free)}
        if free:
            found["which"] = Table(("subscription", "partition", "events", "seconds"), rows)
            found["what to do"] = "start a consumer of the subscription, or unsubscribe it"
        return ProbeVerdict(not free, found)

    return tell


def _dead_letters(world: World) -> Callable[[str], ProbeVerdict]:
    lags = _by_topic(subscriptions.lag(world.connection))
    dead = {each.subscription: each.unforwarded for each in counts(world.connection)}

    def tell(topic: str) -> ProbeVerdict:
        readers = sorted({each.subscription for each in lags.get(topic, [])})
        return _letters({name: dead.get(name, 0) for name in readers})

    return tell


def _letters(dead: dict[str, int]) -> ProbeVerdict:
    rows = [(name, count) for name, count in dead.items() if count]
    found: dict[str, Any] = {"dead letters": sum(dead.values())}
    if rows:
        found["of"] = Table(("subscription", "dead letters"), rows)
        found["what to do"] = shell("penstock", "dead-letter", "list", rows[0][0])
    return ProbeVerdict(not rows, found)


def _epochs_contiguous(world: World) -> Callable[[str], ProbeVerdict]:
    end = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)

    def tell(topic: str) -> ProbeVerdict:
        if not world.has(topic):
            return NOT_THERE
        epochs = epochs_between(world.connection, topic, end - CONTIGUOUS, end)
        gaps = [
            (after.partition, after.log_epoch, before.last_sequence + 1, after.first_sequence)
            for before, after in pairwise(epochs)
            if before.partition == after.partition
            and (before.log_epoch + 1, before.last_sequence + 1)
            != (after.log_epoch, after.first_sequence)
        ]
        found: dict[str, Any] = {"log epochs": len(epochs)}
        if gaps:
            found["gaps"] = Table(("partition", "log epoch", "expected first", "first"), gaps)
        return ProbeVerdict(not gaps, found, is_error=True)

    return tell


def _readable(world: World) -> Callable[[str], ProbeVerdict]:
    from ops.archive.sampling import read_newest

    def tell(topic: str) -> ProbeVerdict:
        if not world.has(topic):
            return NOT_THERE
        places, unnamed = world.usable(world.policies.of_topic(topic).archive)
        read = {each.name: read_newest(world.url, topic, each) for each in places}
        rows = [*unnamed.items(), *((name, said) for name, (_, said) in read.items())]
        is_whole = not any(unnamed.values()) and all(good for good, _ in read.values())
        return ProbeVerdict(is_whole, {"newest copies": Table(("target", "what was found"), rows)})

    return tell


def _schema_drift(world: World) -> Callable[[str], ProbeVerdict]:
    from ops.archive.sampling import schema_differences

    def tell(topic: str) -> ProbeVerdict:
        if not world.has(topic):
            return NOT_THERE
        places, unusable = world.usable(world.policies.of_topic(topic).archive)
        rows = [
            *unusable.items(),
            *(
                (each.name, difference)
                for each in places
                for difference in schema_differences(world.url, topic, each)
            ),
        ]
        found = {"differences": Table(("target", "difference"), rows)} if rows else {}
        return ProbeVerdict(not rows, found)

    return tell


def _backlog_age(world: World) -> Callable[[str], ProbeVerdict]:
    lags = by_quorum(world.connection, subscriptions.lag(world.connection))
    limit = world.policies.limits.relay_lag
    # By what the database has: the policy file may say another kind, which `drift` tells.
    queues = queue_names(world.connection)

    def tell(relay: str) -> ProbeVerdict:
        own_relay = world.policies.relays[relay]
        name = own_relay.group or own_relay.subscription
        own: Sequence[Lag] = [each for each in lags if each.subscription == name]
        if name in queues:
            own = of_queue(world.connection, name, own)
        return _lag_verdict(own, limit) if own else NO_SUBSCRIPTION

    return tell


def _relay_letters(world: World) -> Callable[[str], ProbeVerdict]:
    dead = {each.subscription: each.unforwarded for each in counts(world.connection)}

    def tell(relay: str) -> ProbeVerdict:
        name = world.policies.relays[relay].subscription
        return _letters({name: dead.get(name, 0)})

    return tell


def _drift(world: World, _: str) -> ProbeVerdict:
    differing = drift(world.connection, world.policies)
    found: dict[str, Any] = {}
    if followed := other_files(world.connection, world.policies):
        found["follows another file"] = ", ".join(followed)
    if differing:
        columns = ("of", "setting", "the file says", "the database has", "set by")
        rows = [(e.subject, e.setting, e.wanted, e.found, e.origin or "") for e in differing]
        found["differences"] = Table(columns, rows)
    if missing := awaited(world.connection, world.policies):
        commands = [(f"{e.scope} {e.name}", f"`{e.create}`") for e in missing]
        found["not there yet"] = Table(("of", "created by"), commands)
    if by_hand := set_by_hand(world.connection):
        columns = ("of", "policy", "version", "by", "at")
        rows = [
            (f"{e.scope} {e.name}".strip(), e.kind, str(e.version), e.updated_by,
             f"{e.updated_at:%Y-%m-%d %H:%M}")
            for e in by_hand
        ]  # fmt: skip
        found["set by hand"] = Table(columns, rows)
    return ProbeVerdict(not differing, found)


def _errors(world: World, _: str) -> ProbeVerdict:
    # A driver connection of its own: the schema is looked at as well, outside any pool.
    with database.connect(world.url, application_name="penstock health") as own:
        findings = health(own, world.policies)
    rows = [(f.severity.value, f.check, f.what, f"`{f.command}`") for f in findings]
    found = {"report": Table(("severity", "what", "finding", "mended by"), rows)} if rows else {}
    return ProbeVerdict(
        not any(f.severity is Severity.ERROR for f in findings), found, is_error=True
    )


def _end_to_end(world: World, _: str) -> ProbeVerdict:
    topic = world.policies.canary
    if not topic:
        return ProbeVerdict(True, {"note": "the policy file names no canary"})
    return flown(fly(world.url, topic, limit_seconds=world.policies.limits.end_to_end))


def flown(done: Canary) -> ProbeVerdict:
    """The verdict on a run of the canary."""
    found: dict[str, Any] = {
        "event": str(done.event_id),
        "published after (s)": round(done.published, 3),
        "sequenced after (s)": _rounded(done.sequenced),
        "consumed after (s)": _rounded(done.consumed),
    }
    if done.problem:
        found["problem"] = done.problem
    return ProbeVerdict(not done.problem, found)


def _rounded(seconds: float | None) -> float | str:
    return "never" if seconds is None else round(seconds, 3)
