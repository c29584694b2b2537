"""Health: what is wrong, or soon will be, each with the command that mends it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from ops.archive.overview import archived_topics
from ops.backfill.asking import WAITING, by_hand
from ops.backfill.requests import list_backfills
from ops.policies.file import Policies
from ops.policies.policy import HAND, NONE, Drift, drift
from penstock import log, subscriptions
from penstock.database import call
from penstock.doctor.findings import Finding, Severity, error, warning
from penstock.doctor.schema import examine_schema
from penstock.log import LogStatus
from penstock.log.histories import restore_status
from penstock.records import as_time
from penstock.subscriptions import Lag
from penstock.subscriptions.dead_letters import dead_letters

#: Fewer event ids than this left in the prepared storage is too few for a night.
FEW_EVENT_IDS = 1_000_000
#: Prepared storage should reach for seven days; fewer than this and nobody prepares it.
FEW_DAYS = 2.0
LONG_TRANSACTION_SECONDS = 3_600.0
#: A backfill request that is due for longer has nobody who works it off.
REQUEST_WAITS_SECONDS = 600.0

_DAEMON = "python -m consumers --roles sequencer,sweep"


def run_job(name: str) -> str:
    """The command that runs one of the Dagster jobs by hand."""
    return f"dagster job execute -m dagster_project.definitions -j {name}"


def health(connection: Any, policies: Policies) -> list[Finding]:
    """Everything that is wrong, the worst first; changes nothing."""
    found = examine_schema(connection)
    if any(finding.severity is Severity.ERROR for finding in found):
        return found
    found += _log(log.status(connection), policies)
    found += _restores(connection)
    found += _storage(connection)
    found += _subscriptions(subscriptions.lag(connection), policies)
    found += _dead_letters(connection)
    found += _copies(connection, policies)
    found += _requests(connection)
    found += _policies(connection, policies)
    return sorted(found, key=lambda each: (each.severity is not Severity.ERROR, each.check))


def _log(status: LogStatus, policies: Policies) -> Iterator[Finding]:
    if status.unsequenced_age_seconds > policies.limits.unsequenced:
        yield error(
            "sequencer",
            f"{status.unsequenced_events} events or more wait for their sequence, the oldest for "
            f"{status.unsequenced_age_seconds:.0f} s",
            f"{_DAEMON}  # or once: {run_job('sequence')}",
        )
    if status.event_ids_ready is not None and status.event_ids_ready < FEW_EVENT_IDS:
        yield error(
            "storage",
            f"storage is ready for {status.event_ids_ready} more events only",
            run_job("sequence"),
        )
    if (status.oldest_transaction_seconds or 0) > LONG_TRANSACTION_SECONDS:
        yield warning(
            "transactions",
            f"a transaction is open for {status.oldest_transaction_seconds:.0f} s: until "
            "it ends, the database cannot remove old versions of rows",
            'psql -c "SELECT pid, usename, state, xact_start FROM pg_stat_activity '
            'WHERE backend_xmin IS NOT NULL ORDER BY xact_start LIMIT 5"',
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
                run_job("sequence"),
            )


def _subscriptions(lags: list[Lag], policies: Policies) -> Iterator[Finding]:
    relays = {relay.subscription for relay in policies.relays.values()}
    for each in lags:
        is_relay = each.subscription in relays
        limit = policies.limits.relay_lag if is_relay else policies.limits.consumer_lag
        if each.lag_seconds <= limit:
            continue
        held = f"held by {each.holder}" if each.holder else "held by nobody"
        consumer = f"python -m consumers --roles consumers --consumer {each.subscription}=..."
        tell = warning if each.holder else error
        yield tell(
            f"subscription {each.subscription}",
            f"{each.lag_events} events of {each.topic} partition {each.partition} wait, the first "
            f"for {each.lag_seconds:.0f} s; the partition is {held}",
            run_job("relay") if is_relay else consumer,
        )


def _dead_letters(connection: Any) -> Iterator[Finding]:
    for subscription in sorted({each.subscription for each in subscriptions.lag(connection)}):
        dead = dead_letters(connection, subscription, max_rows=100)
        if dead:
            newest = dead[0]
            yield warning(
                f"subscription {subscription}",
                f"{len(dead)} dead letters{' or more' if len(dead) == 100 else ''}, the newest "  # noqa: PLR2004
                f"{newest.topic} partition {newest.partition} sequence {newest.sequence}: "
                f"{newest.reason}",
                f"penstock dead-letter list {subscription}",
            )


def _copies(connection: Any, policies: Policies) -> Iterator[Finding]:
    for each in archived_topics(connection, policies):
        if each.below_quorum:
            yield error(
                each.topic,
                f"{each.below_quorum} sealed log epochs have fewer than {each.ack_quorum} verified "
                f"copies on {each.targets}",
                f"penstock backfill {each.topic}",
            )
        elif each.below_copies:
            yield warning(
                each.topic,
                f"{each.below_copies} sealed log epochs have fewer than {each.copies} verified "
                f"copies on {each.targets}",
                f"penstock backfill {each.topic}",
            )


def _requests(connection: Any) -> Iterator[Finding]:
    now = dt.datetime.now(dt.UTC)
    for each in list_backfills(connection, state=WAITING):
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
        by_hand = each.origin == HAND
        yield warning(
            each.name or each.subject,
            f"{each.setting}: the policy file says {each.wanted}, the database has {each.found}"
            + (" (set by hand)" if by_hand else ""),
            run_job("policies")
            if each.mendable
            else f"write it into the policy file under {_place(each)}"
            if each.wanted == NONE
            else f"penstock {each.scope} create {each.name}"
            + (" --topic ..." if each.scope == "subscription" else ""),
        )


def _place(drifted: Drift) -> str:
    """Where the policy file would say it."""
    return f"{drifted.scope}s.{drifted.name}" if drifted.name else drifted.scope
