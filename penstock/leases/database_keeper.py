"""Holding leases: membership, heartbeats and check-ins, independent of the handlers.

A keeper joins.  The heartbeat of its process keeps it alive and says when to check in.  After it
was collected as dead, it joins again.  It trusts the database's clock, with one exception: it uses
its own monotonic clock to stop using leases before the database could give them to another
consumer.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock import database
from penstock.database.backoff import backoff
from penstock.errors import (
    DuplicateSession,
    LogBehind,
    PenstockError,
    StaleLease,
    UnknownConsumer,
)
from penstock.leases import heartbeat
from penstock.leases.keeper import Keeper
from penstock.log import restores
from penstock.records import Event, Lease
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Beat, Membership

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.database import Connection

log = logging.getLogger(__name__)

#: With many consumers: how far early check-ins may exceed target_qps.
ASKED_SHARE = 0.2
#: The pause after a heartbeat that found the consumer's row locked.
LOCKED_SECONDS = 0.2
#: A check-in joins so often at most.
MOST_JOINS = 3


class LeaseKeeper(Keeper):
    """Keeps a consumer's membership and leases alive while the block runs.

        with LeaseKeeper(url, "billing") as keeper:
            for lease in keeper.leases(): ...

    ``clock`` is a monotonic clock in seconds.
    """

    in_database = True

    def __init__(
        self,
        url: str,
        subscription: str,
        *,
        consumer: str | None = None,
        weight: float = 1.0,
        topics: Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(url, subscription, consumer, clock)
        self._weight = weight
        self._topics = topics
        self._known: dict[int, Lease] = {}
        self._heartbeat_threads: heartbeat.HeartbeatThreads | None = None
        # Times by the process's clock, which the heartbeat threads uses.
        self._beat_at = -math.inf
        self._checked_in_at = -math.inf
        self._check_in_at = math.inf
        self._owed_since = math.inf
        self._pace = 0.0
        self._asked = self._gone = self._doubtful = self._left = False
        self._failures = 0

    def __enter__(self) -> LeaseKeeper:
        """Joins and checks in once, so that a wrong name or id fails here and not in a thread."""
        self._left = False
        self._heartbeat_threads = heartbeat.enter(self, self.url)
        try:
            self._check_in_connection(lambda connection: self._check_in(connection, fresh=True))
        except BaseException:
            heartbeat.leave(self, self._heartbeat_threads)
            raise
        self._heartbeat_threads.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves, so that others need not wait for the lease to end."""
        assert self._heartbeat_threads is not None
        self._left = True
        self._forget_all()
        try:
            self._check_in_connection(lambda connection: stream.leave(connection, self.member))
        except Exception as failure:
            log.warning(
                "%s could not leave, its leases end by themselves: %s", self.consumer, failure
            )
        heartbeat.leave(self, self._heartbeat_threads)

    def moved(self, lease: Lease, position: int) -> None:
        """The position of a lease was committed.  Keep it, to compare it with a restored log."""
        with self._lock:
            self._remember(replace(lease, position=position))
        super().moved(lease, position)

    def check_in_soon(self) -> None:
        """Check in before the heartbeat says so, and look again at what is unread.

        Every consumer hears of every partition that grows.  With many consumers, most of those that
        ask hear of another one's check-in before their own turn comes.
        """
        with self._lock:
            now = time.monotonic()
            if not self._asked and not self._failures:
                self._check_in_at = min(self._check_in_at, now + self._soon(now))
            self._asked = True
        if self._heartbeat_threads is not None:
            self._heartbeat_threads.wake()

    def heard(self, notices: Sequence[str]) -> None:
        """Check in soon when a partition has grown that is not held here."""
        if not notices:
            return
        held = {str(lease.partition_id) for lease in self.leases()}
        for notice in notices:
            # Any login may notify this channel. A payload that is not a list of partitions
            # means "all".
            if not held.issuperset(notice.split(",")):
                self.check_in_soon()

    def _soon(self, now: float) -> float:
        if self._pace > self.member.heartbeat_seconds:
            return random.uniform(0, self._pace / ASKED_SHARE)
        spread = random.uniform(0, max(0.0, self._pace - 1))
        return max(spread, self._checked_in_at + self._pace - now)

    def poll(
        self,
        connection: Connection,
        leases: Sequence[Lease],
        max_events: int,
        max_each: int | None = None,
    ) -> list[tuple[Lease, list[Event]]]:
        """Unread events after the position of each lease.

        Raises LogBehind, and the partition stops, when the log ends before what was read.
        """
        try:
            member = self._member or self.member
            return stream.poll(connection, member, leases, max_events, max_each)
        except LogBehind:
            self._require(connection, leases)
            raise

    def commit(
        self,
        connection: Connection,
        wanted: Sequence[tuple[Lease, int]],
        after: Sequence[int],
    ) -> None:
        """Move positions forward, all or none."""
        stream.commit(connection, self._member or self.member, wanted, after=after)

    def release(self, connection: Connection, leases: Sequence[Lease]) -> None:
        """Give leases back."""
        stream.release(connection, self.member, leases)

    def position(self, connection: Connection, lease: Lease) -> int:
        """Where a partition stands in the database."""
        for each in self.held(connection):  # by ids: its topic may have a new name by now
            if (each.partition_id, each.lease_epoch) == (lease.partition_id, lease.lease_epoch):
                return each.position
        raise StaleLease(
            f"the lease on {lease.topic} partition {lease.partition} is not held any more",
            hint="drop what was read: another consumer may have taken over",
        )

    def held(self, connection: Connection) -> list[Lease]:
        """The leases and positions that the database has."""
        return stream.held_leases(connection, self.member)

    # What the two heartbeat threads call.

    def may_beat(self, now: float) -> bool:
        """Whether to keep the consumer alive.

        Not while it cannot check in, or its loop waits for the database: the others have to get
        its share.
        """
        if self._member is None or self._gone or self._doubtful or self._left or self.is_stuck():
            return False
        return now - self._owed_since < self._member.lease_seconds

    def beat_due(self, share: float = 1.0) -> float:
        """The time when this share of a heartbeat interval has passed since the last heartbeat."""
        return self._beat_at + self.member.heartbeat_seconds * share

    def begin_beat(self) -> tuple[Membership, float]:
        """The member to keep alive, and the time by the leases' clock before the heartbeat."""
        self._beat_at = time.monotonic()
        return self.member, self._clock()

    def beaten(self, member: Membership, begun: float, beat: Beat) -> None:
        """Take the result of a heartbeat."""
        now = time.monotonic()
        with self._lock:
            if member is not self._member:  # it has joined again meanwhile
                return
            if beat.standing == "locked":
                self._beat_at = now - member.heartbeat_seconds + LOCKED_SECONDS
                return
            if beat.standing == "gone":
                self._gone = True
                self._check_in_at = now
                self._forget_leases()
                return
            self._keep_alive(begun)
            self._pace = beat.pace_seconds
            self._owed_since = min(self._owed_since, now) if not beat.check_in_seconds else math.inf
            if self._failures:
                return
            told = now + beat.check_in_seconds
            if self._asked and self._pace <= member.heartbeat_seconds:
                told = min(told, self._check_in_at)
            else:
                self._asked = False
            self._check_in_at = told

    def check_in_due(self) -> float:
        """When to check in."""
        return math.inf if self._left else self._check_in_at

    def check_in(self) -> None:
        """Check in, or set when to try again.  A failure here disturbs no other consumer."""
        with self._lock:
            fresh, self._asked = self._asked, False
            self._check_in_at = math.inf
        try:
            self._check_in_connection(lambda connection: self._check_in(connection, fresh=fresh))
            self._failures = 0
            return
        except (DuplicateSession, LogBehind) as error:
            # Another run has this id, or the leases are of a log that was restored since.
            self._forget_all()
            log.error("%s", error)
        except Exception as error:
            if isinstance(error, PenstockError) or database.is_unavailable(error):
                log.warning("check-in of %s failed: %s", self.consumer, error)
            else:
                log.exception("check-in of %s failed", self.consumer)
        with self._lock:
            self._failures += 1
            self._asked = True
            self._check_in_at = time.monotonic() + backoff(self._failures)

    def doubt(self) -> None:
        """Compare before the next check-in: the server may be another, or in an earlier state."""
        self._doubtful = True

    def compare(self, connection: Connection) -> None:
        """Compare what this consumer knows with the log.  If it is ahead, it checks in first."""
        try:
            self._require_known(connection)
        except PenstockError as error:
            log.error("%s", error)
            self.doubt()
            with self._lock:
                self._check_in_at = time.monotonic()

    def _require_known(self, connection: Connection) -> None:
        self._require(connection, list(self._known.values()))
        self._doubtful = False

    def _require(self, connection: Connection, known: Sequence[Lease]) -> None:
        restores.require_leases(connection, known, f'consumer "{self.consumer}"', self.subscription)

    def _went_back(self, before: dict[int, Lease], held: Sequence[Lease]) -> list[Lease]:
        """The leases whose position is before the known one, under the same lease_epoch.

        This finds a restore through a pooler, where the connection outlives the restore.
        """
        known = {lease.partition_id: before.get(lease.partition_id, lease) for lease in held}
        return [
            lease
            for lease in held
            if known[lease.partition_id].lease_epoch == lease.lease_epoch
            and known[lease.partition_id].position > lease.position
        ]

    def _check_in_connection(self, work: Callable[[Connection], object]) -> None:
        """Do it, and once more on a new connection when the old one turns out to be lost."""
        assert self._heartbeat_threads is not None
        for is_last in (False, True):
            try:
                with self._heartbeat_threads.check_in_connection() as connection:
                    work(connection)
                return
            except Exception as error:
                if is_last or not database.is_unavailable(error):
                    raise

    def _remember(self, lease: Lease) -> None:
        """Keep the furthest position of each partition, whichever consumer holds it by now."""
        known = self._known.get(lease.partition_id, lease)
        if (lease.history, lease.position) >= (known.history, known.position):
            self._known[lease.partition_id] = lease

    def _joined_and_checked_in(self, connection: Connection, *, fresh: bool) -> list[Lease]:
        """Check in; who is not a member joins.

        A process that is frozen after it has joined may not be a member any more when it wakes.
        """
        for _ in range(MOST_JOINS):
            try:
                return stream.check_in(connection, self.member, fresh=fresh)
            except UnknownConsumer:
                self._join(connection)
        return stream.check_in(connection, self.member, fresh=fresh)

    def _join(self, connection: Connection) -> None:
        self._forget_all()
        self._member = stream.join(
            connection,
            self.subscription,
            self.consumer,
            self._weight,
            topics=self._topics,
            known=list(self._known.values()),
        )
        self.joins += 1

    def _check_in(self, connection: Connection, *, fresh: bool) -> None:
        if self._left:
            return
        if self._doubtful:
            self._require_known(connection)
        begun, before = self._clock(), dict(self._known)
        held = self._joined_and_checked_in(connection, fresh=fresh)
        back = self._went_back(before, held)
        if back:
            self.doubt()
            self._require_known(connection)
        with self._lock:
            for lease in back:  # the log has all events that were seen: read them again from there
                self._leases.pop(lease.partition_id, None)
                self._known[lease.partition_id] = lease
            self._install({lease.partition_id: self._newest(lease) for lease in held}, begun)
            for lease in self._leases.values():
                self._remember(lease)
            self._checked_in_at = self._beat_at = time.monotonic()
            self._owed_since = math.inf
            self._gone = False
        self.wake()
