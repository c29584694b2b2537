"""Holding leases: a thread with a connection of its own, whatever the handlers do meanwhile.

The keeper joins, checks in at the subscription's heartbeat, joins again after it was collected, and
reconnects after the database was away.  It trusts the database's clock for everything but one
thing: by its own monotonic clock it stops using leases before the database could give them away.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock import database, history, stream
from penstock.errors import DuplicateSession, LogBehind, PenstockError, UnknownConsumer
from penstock.records import Lease
from penstock.stream import Membership

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.database import Connection

log = logging.getLogger(__name__)

#: The share of the lease time after which the keeper's own clock stops the work.
LOCAL_SHARE = 0.9
#: The share of a heartbeat that lies between two check-ins, however often one is asked for.
SOON_SHARE = 0.1
MAX_RECONNECT_SECONDS = 10.0


def consumer_id() -> str:
    """An id for a consumer that was not given one: host, process and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


class LeaseKeeper:
    """Keeps a consumer's membership and leases alive while the block runs.

        with LeaseKeeper(url, "billing") as keeper:
            for lease in keeper.leases(): ...

    ``clock`` is a monotonic clock in seconds.
    """

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
        self.consumer = consumer or consumer_id()
        self._url = url
        self._subscription = subscription
        self._weight = weight
        self._topics = topics
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: dict[int, Lease] = {}
        self._known: dict[int, Lease] = {}
        self._valid_until = 0.0
        self._member: Membership | None = None
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self.joins = 0
        self.last_success = clock()

    def __enter__(self) -> LeaseKeeper:
        """Joins and checks in once, so that a wrong name or id fails here and not in a thread."""
        connection = self._connect()
        try:
            self._check_in(connection)
        except BaseException:
            connection.close()
            raise
        self._thread = threading.Thread(
            target=self._run, args=(connection,), name=f"leases-{self.consumer}", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves, so that others need not wait for the lease to end."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def member(self) -> Membership:
        """The present membership."""
        if self._member is None:
            raise UnknownConsumer(f"consumer {self.consumer!r} has not joined")
        return self._member

    def leases(self) -> list[Lease]:
        """What is held now, by the local clock too; empty once the lease may have ended."""
        with self._lock:
            if self._clock() >= self._valid_until:
                return []
            return list(self._leases.values())

    def moved(self, lease: Lease, position: int) -> None:
        """The position of a lease was committed."""
        with self._lock:
            held = self._leases.get(lease.partition_id)
            if held is not None and held.lease_epoch == lease.lease_epoch:
                self._leases[lease.partition_id] = replace(held, position=position)
                self._remember(self._leases[lease.partition_id])

    def lost(self, lease: Lease) -> None:
        """The lease turned out to be stale, or was given back: forget it and check in soon."""
        with self._lock:
            held = self._leases.get(lease.partition_id)
            if held is not None and held.lease_epoch == lease.lease_epoch:
                del self._leases[lease.partition_id]
        self._wake.set()

    def check_in_soon(self) -> None:
        """Check in before the next heartbeat is due."""
        self._wake.set()

    def _run(self, connection: Connection | None) -> None:
        failures = 0
        while not self._stop.is_set():
            if self._wake.wait(self._pause(failures)):
                # Every consumer hears of every partition that grows; check-ins queue up.
                self._stop.wait(self._shortest_pause())
            self._wake.clear()
            if self._stop.is_set():
                break
            try:
                connection = connection or self._reconnect()
                self._check_in(connection)
                failures = 0
            except DuplicateSession as error:
                # Somebody else runs under this id now: every lease of this session is gone.
                self._forget_all()
                failures += 1
                log.error("%s", error)
            except LogBehind as error:
                # What is held is of a log that is no more.
                self._forget_all()
                failures += 1
                log.error("%s", error)
                _close(connection)
                connection = None
            except Exception as error:
                if not (isinstance(error, PenstockError) or database.is_unavailable(error)):
                    log.exception("check-in of %s failed", self.consumer)
                else:
                    log.warning("check-in of %s failed: %s", self.consumer, error)
                failures += 1
                _close(connection)
                connection = None
        self._leave(connection)

    def _pause(self, failures: int) -> float:
        if failures == 0:
            return self.member.heartbeat_seconds
        return random.uniform(0.1, min(MAX_RECONNECT_SECONDS, 0.5 * 2.0 ** min(failures, 10)))

    def _shortest_pause(self) -> float:
        shortest = self.member.heartbeat_seconds * SOON_SHARE
        return min(shortest, max(0.0, self.last_success + shortest - self._clock()))

    def _connect(self) -> Connection:
        return database.connect(self._url, application_name=f"penstock {self.consumer}"[:63])

    def _reconnect(self) -> Connection:
        """The server may be another one, or an earlier state of this one."""
        connection = self._connect()
        try:
            source = f'consumer "{self.consumer}"'
            known = self._known.values()
            history.require_leases(connection, known, source, self._subscription)
        except BaseException:
            connection.close()
            raise
        return connection

    def _remember(self, lease: Lease) -> None:
        """The furthest position of each partition, whoever holds it by now."""
        known = self._known.get(lease.partition_id, lease)
        if (lease.history, lease.position) >= (known.history, known.position):
            self._known[lease.partition_id] = lease

    def _check_in(self, connection: Connection) -> None:
        begun = self._clock()
        try:
            held = stream.check_in(connection, self.member)
        except UnknownConsumer:
            self._forget_all()
            known = list(self._known.values())
            self._member = stream.join(
                connection,
                self._subscription,
                self.consumer,
                self._weight,
                topics=self._topics,
                known=known,
            )
            self.joins += 1
            held = stream.check_in(connection, self._member)
        with self._lock:
            self._leases = {lease.partition_id: self._newest(lease) for lease in held}
            for lease in self._leases.values():
                self._remember(lease)
            self._valid_until = begun + self.member.lease_seconds * LOCAL_SHARE
            self.last_success = self._clock()

    def _newest(self, lease: Lease) -> Lease:
        """A commit may have passed while the check-in was under way: its position counts."""
        known = self._leases.get(lease.partition_id)
        if known is None or known.lease_epoch != lease.lease_epoch:
            return lease
        return replace(lease, position=max(known.position, lease.position))

    def _forget_all(self) -> None:
        with self._lock:
            self._leases = {}
            self._valid_until = 0.0

    def _leave(self, connection: Connection | None) -> None:
        self._forget_all()
        try:
            connection = connection or self._connect()
            stream.leave(connection, self.member)
        except Exception as error:
            log.warning(
                "%s could not leave, its leases end by themselves: %s", self.consumer, error
            )
        finally:
            _close(connection)


def _close(connection: Connection | None) -> None:
    if connection is not None:
        connection.close()
