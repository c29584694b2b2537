"""Health: what is wrong, or soon will be, each with the command that mends it."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator
from typing import Any

from ops.archive.overview import archived_topics
from ops.backfill.asking import by_hand, due_requests
from ops.lateness import QUEUE, lateness
from ops.policies.file import HAND, Policies
from ops.policies.policy import PolicyDrift, drift, in_shell, to_database
from ops.policies.settings import RelayPolicy
from ops.policies.values import REFERENCE
from penstock import log
from penstock.database import call
from penstock.doctor.findings import Finding, Severity, error, shell, warning
from penstock.doctor.schema import examine_schema
from penstock.errors import NotInRole
from penstock.log import LogStatus
from penstock.log.histories import restore_status
from penstock.records import as_time
from penstock.subscriptions import Lag
from penstock.subscriptions.dead_letters import counts, dead_letters

#: Fewer event ids than this left in the prepared storage is too few for a night.
FEW_EVENT_IDS = 1_000_000
#: Prepared storage should reach for seven days; fewer than this and nobody prepares it.
FEW_DAYS = 2.0
LONG_TRANSACTION_SECONDS = 3_600.0
#: A backfill request that is due for longer has nobody who works it off.
REQUEST_WAITS_SECONDS = 600.0

_SEQUENCE = "penstock sequence  # once; all the time: penstock daemon --roles sequencer,sweep"


def health(connection: Any, policies: Policies) -> list[Finding]:
    """Everything that is wrong, the worst first; changes nothing."""
    found = examine_schema(connection)
    if any(finding.severity is Severity.ERROR for finding in found):
        return [_of_database(each, policies) for each in found]
    found += _log(log.status(connection), policies)
    found += _restores(connection)
    found += _storage(connection)
    found += _subscriptions(lateness(connection), policies)
    found += _dead_letters(connection)
    found += _copies(connection, policies)
    found += _requests(connection)
    found += _policies(connection, policies)
    found = [_of_database(each, policies) for each in found]
    return sorted(found, key=lambda each: (each.severity is not Severity.ERROR, each.check))


def _of_database(finding: Finding, policies: Policies) -> Finding:
    """The finding with a command that goes to this database of the policy file."""
    return dataclasses.replace(finding, command=to_database(finding.command, policies))


def _log(status: LogStatus, policies: Policies) -> Iterator[Finding]:
    if status.unsequenced_age_seconds > policies.limits.unsequenced:
        yield error(
            "sequencer",
            f"{status.unsequenced_events} events or more wait for their sequence, the oldest for "
            f"{status.unsequenced_age_seconds:.0f} s",
            _SEQUENCE,
        )
    if status.event_ids_ready is not None and status.event_ids_ready < FEW_EVENT_IDS:
        yield error(
            "storage",
            f"storage is ready for {status.event_ids_ready} more events only",
            _SEQUENCE,
        )
    if (status.oldest_transaction_seconds or 0) > LONG_TRANSACTION_SECONDS:
        yield warning(
            "transactions",
            f"a transaction is open for {status.oldest_transaction_seconds:.0f} s: until "
            "it ends, the database cannot remove old versions of rows",
            "penstock doctor  # names it, and what ends it",
        )


def _restores(connection: Any) -> Iterator[Finding]:
    for each in restore_status(connection):
        yield error(
            each.topic,
            f"{each.source} has seen sequence {each.sequence} of partition {each.partition} in "
            f"history {each.history}, but the log ends at {each.high_watermark}",
            "penstock restore reconcile REASON --yes",
        )


def _storage(connection: Any) -> Iterator[Finding]:
    for parent, _, ready, days, _ in call(connection, "slices_ready"):
        if days is not None and days < FEW_DAYS:
            yield warning(
                "storage",
                f"the table {parent} is ready for {ready} more ids: {days:.1f} days at the highest "
                "rate seen",
                _SEQUENCE,
            )


def _subscriptions(lags: list[Lag], policies: Policies) -> Iterator[Finding]:
    relays = {relay.group or relay.subscription: relay for relay in policies.relays.values()}
    for each in lags:
        relay = relays.get(each.subscription)
        limit = policies.limits.relay_lag if relay else policies.limits.consumer_lag
        if each.lag_seconds <= limit:
            continue
        held = f"the partition is held by {each.holder or 'nobody'}"
        if each.state == QUEUE:
            held = "its workers are too slow" if each.holder else "no worker has any of the queue"
        consumer = (
            shell("penstock", "subscription", "describe", each.subscription)
            + "  # start its consumers, or take it away: penstock subscription delete"
        )
        tell = warning if each.holder else error
        yield tell(
            f"subscription {each.subscription}",
            f"{each.lag_events} events of {each.topic} partition {each.partition} wait, the first "
            f"for {each.lag_seconds:.0f} s; {held}",
            _relay(relay, policies) if relay else consumer,
        )


def _relay(relay: RelayPolicy, policies: Policies) -> str:
    """The command that sends what waits."""
    if relay.group:
        return shell("penstock", "relay", "group", "run", relay.group)
    is_variable = REFERENCE.fullmatch(relay.sink)
    sink = relay.sink if is_variable else policies.sink_address(relay)
    order = f" --order {relay.order}" if is_variable and relay.order else ""
    return f"{shell('penstock', 'relay', relay.subscription)} {in_shell(sink)}{order}"


def _dead_letters(connection: Any) -> Iterator[Finding]:
    for each in counts(connection):
        if each.left:
            yield warning(
                f"subscription {each.subscription}",
                f"{each.left} dead letters{_newest_letter(connection, each.subscription)}",
                shell("penstock", "dead-letter", "list", each.subscription),
            )


def _newest_letter(connection: Any, subscription: str) -> str:
    """The newest one, for logins that may read dead letters: a reader only counts them."""
    try:
        newest = next(iter(dead_letters(connection, subscription, max_rows=1)), None)
    except NotInRole:
        return ""
    if newest is None:
        return ""
    return (
        f", the newest {newest.topic} partition {newest.partition} sequence {newest.sequence}: "
        f"{newest.reason}"
    )


def _copies(connection: Any, policies: Policies) -> Iterator[Finding]:
    for each in archived_topics(connection, policies):
        if each.below_quorum:
            yield error(
                each.topic,
                f"{each.below_quorum} sealed log epochs have fewer than {each.ack_quorum} verified "
                f"copies on {each.targets}",
                shell("penstock", "backfill", each.topic),
            )
        elif each.below_copies:
            yield warning(
                each.topic,
                f"{each.below_copies} sealed log epochs have fewer than {each.copies} verified "
                f"copies on {each.targets}",
                shell("penstock", "backfill", each.topic),
            )


def _requests(connection: Any) -> Iterator[Finding]:
    now = dt.datetime.now(dt.UTC)
    for each in due_requests(connection):
        seconds = (now - as_time(each.not_before)).total_seconds()
        if seconds > REQUEST_WAITS_SECONDS:
            yield warning(
                f"backfill request {each.request}",
                f"the {each.kind} of {each.topic} is due for {seconds:.0f} s and nobody has "
                "claimed it: look at the sensor backfills and at its runs"
                + (f"; the last attempt said: {each.error}" if each.error else ""),
                by_hand(each.request),
            )


def _policies(connection: Any, policies: Policies) -> Iterator[Finding]:
    for each in drift(connection, policies):
        yield warning(
            each.name or each.subject,
            f"{each.setting}: the policy file says {each.wanted}, the database has {each.found}"
            + (
                f" (set by {each.origin})" if each.origin and each.origin != policies.origin else ""
            ),
            _mended_by(each),
        )


def _mended_by(drifted: PolicyDrift) -> str:
    if drifted.mendable:
        return "penstock policy apply"
    if drifted.origin == HAND:
        return f"penstock policy diff  # write it into the policy file under {_place(drifted)}"
    return "penstock policy diff  # another file is followed; apply --take-over makes it this one"


def _place(drifted: PolicyDrift) -> str:
    """Where the policy file would say it."""
    return f"{drifted.scope}s.{drifted.name}" if drifted.name else drifted.scope
