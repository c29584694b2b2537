"""Keeps the leases and positions of a consumer in a store other than the database.

The store is etcd, Redis or memory.  One thread renews and checks in with the store.  Another thread
looks into the database for new partitions, a pause or a seek.  It also copies the positions there,
because retention goes by them.

Dead letters are in the database, and are fenced there.  Before the loop works on a new lease, it
tells the database its lease_epoch, so that an earlier holder can write no more letters.  A letter
and the position in the database move together, and the store's position follows.  When a consumer
ends in between, its successor finds the database ahead of the store, and follows too.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from penstock import database, subscriptions
from penstock.database import config
from penstock.database.backoff import backoff
from penstock.errors import (
    BeyondHighWatermark,
    ConfigurationError,
    DuplicateSession,
    InvalidArgument,
    LogBehind,
    PenstockError,
    PositionsElsewhere,
    StaleLease,
)
from penstock.leases.coordination import LeaseRegistry, Snapshot, open_registry
from penstock.leases.coordination.assigners import Assigner, Coordinated, Pinned, WorkStealing
from penstock.leases.coordination.marks import SECONDS, copy_positions, tell as tell_database
from penstock.leases.keeper import Keeper
from penstock.log import fetch
from penstock.records import Event, Lease
from penstock.subscriptions.dead_letters import Suspect
from penstock.subscriptions.stream import Membership

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.database import Connection
    from penstock.leases.coordination.registry import Holding

log = logging.getLogger(__name__)

STORES = ("etcd", "etcds", "redis", "rediss", "memory")
#: Time between two looks into the database: a mark has to lag by less than marks.SECONDS.
LOOK_SECONDS = SECONDS / 2
#: Time between two check-ins that were asked for early.
HURRY_SECONDS = 0.05
#: The state of a lease of which the database does not know yet.
CLAIMED = "CLAIMED"


class KnownPartition(NamedTuple):
    """What the database knows of a partition."""

    topic: str
    partition: int
    history: int
    lease_epoch: int
    position: int


class RegistryKeeper(Keeper):
    """Keeps leases in the store at ``coordination`` alive while the block runs."""

    in_database = False

    def __init__(
        self,
        url: str,
        subscription: str,
        coordination: str,
        *,
        assign: str = "stealing",
        consumer: str | None = None,
        weight: float = 1.0,
        topics: Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if urlsplit(coordination).scheme not in STORES:
            raise ConfigurationError(
                f"coordination is {config.redact(coordination)!r}",
                hint="use etcd://, redis:// or memory://; leave it out for the database itself",
            )
        if topics is not None:
            raise InvalidArgument(
                "topics= needs leases in the database",
                hint="leave it out, or make a subscription for these topics",
            )
        super().__init__(url, subscription, consumer, clock)
        self._coordination = coordination
        self._make_assigner = _assigner(assign, weight)
        #: Guards the assigner, also during calls to the store.  ``_lock`` guards the loop's view.
        self._check_in_lock = threading.Lock()
        self._asked_back: set[tuple[int, int]] = set()
        #: Partition and lease_epoch of the leases that the database knows.
        self._told: set[tuple[int, int]] = set()
        self._places: dict[int, KnownPartition] = {}
        self._paused = False
        self._refused: PenstockError | None = None
        self._registry: LeaseRegistry
        self._assigner: Assigner
        self._ended = threading.Event()
        self._hurry = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> RegistryKeeper:
        """Raises what is wrong here, before anything has changed in the store or the database."""
        self._ended.clear()
        self._refused, self._places = None, {}
        self._told.clear()
        with database.connect(self.url) as connection:
            found = subscriptions.describe_subscription(connection, self.subscription)
            self._registry = open_registry(
                self._coordination, self.subscription, lease_seconds=found.lease_seconds
            )
            try:
                self._member = Membership(
                    self.subscription,
                    self.consumer,
                    uuid.uuid4(),
                    found.heartbeat_seconds,
                    found.lease_seconds,
                    elsewhere=True,
                )
                self._look(connection)
                self._assigner = self._make_assigner(self._registry, self.consumer)
                self._assigner.may_go = self._ask_back
                self._assigner.join()
                self._check_in()
            except BaseException:
                self._registry.close()
                raise
        self._threads = [
            threading.Thread(target=each, name=f"penstock-{name}", daemon=True)
            for name, each in (("renewals", self._renew), ("marks", self._watch))
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Gives everything back, and copies the positions once more."""
        self._ended.set()
        self._hurry.set()
        for thread in self._threads:
            thread.join()
        self._forget_all()
        try:
            self._assigner.may_go = list
            self._assigner.leave()
            with database.connect(self.url) as connection:
                copy_positions(connection, self.subscription, self._registry)
        except Exception as failure:
            log.warning("%s could not leave in order: %s", self.consumer, failure)
        self._registry.close()

    # -- what the loop asks ---------------------------------------------------------------------

    def check_in_soon(self) -> None:
        self._hurry.set()

    def active(self) -> list[Lease]:
        """None while the subscription is paused."""
        return [] if self._paused else super().active()

    def poll(
        self,
        connection: Connection,
        leases: Sequence[Lease],
        max_events: int,
        max_each: int | None = None,
    ) -> list[tuple[Lease, list[Event]]]:
        """Raises LogBehind, and reads nothing, when the log is not the one of the positions."""
        if self._refused is not None:
            raise self._refused
        ends = {
            partition_id: (end, history)
            for topic in {lease.topic for lease in leases}
            for _, _, end, history, partition_id in database.call(
                connection, "high_watermarks", topic=topic
            )
        }
        polled: list[tuple[Lease, list[Event]]] = []
        left = max_events
        for lease in leases:
            # Not there: the topic has a new name, which the next look finds.
            end, history = ends.get(lease.partition_id, (lease.position, lease.history))
            _require_log(lease, end, history)
            if left > 0 and end > lease.position:
                here = left if max_each is None else min(left, max_each)
                events = fetch(connection, lease.topic, lease.partition, lease.position + 1, here)
                left -= len(events)
                polled.append((lease, events))
        return polled

    def commit(
        self,
        connection: Connection,
        wanted: Sequence[tuple[Lease, int]],
        after: Sequence[int],
    ) -> None:
        """Commit one after the other.  When one is refused, those before it stay committed."""
        for lease, position in wanted:
            with self._lock:
                held = self._leases.get(lease.partition_id)
            if held is not None and (held.lease_epoch, held.position) == (
                lease.lease_epoch,
                position,
            ):
                continue
            self._registry.update_position(
                lease.partition_id, self.consumer, position, lease.lease_epoch
            )
            self._assigner.inherited.discard(_term(lease))
            self.moved(lease, position)

    def release(self, connection: Connection, leases: Sequence[Lease]) -> None:
        with self._check_in_lock:
            for lease in leases:
                self._assigner.give_back(lease.partition_id, lease.lease_epoch)

    def position(self, connection: Connection, lease: Lease) -> int:
        return self._registry.position(lease.partition_id)

    def held(self, connection: Connection) -> list[Lease]:
        with self._lock:
            known = list(self._leases.values())
        return [replace(each, position=self.position(connection, each)) for each in known]

    def lost(self, lease: Lease) -> None:
        """If the store says that it is held, the database is asked before it is worked on again."""
        with self._lock:
            self._told.discard(_term(lease))
        super().lost(lease)

    def look_again(self, connection: Connection) -> None:
        """Also look into the database again: it may have moved on together with a letter."""
        super().look_again(connection)
        with self._lock:
            self._told.clear()
            for partition_id, lease in self._leases.items():
                self._leases[partition_id] = self._with_state(lease)

    # -- dead letters ---------------------------------------------------------------------------

    def take_up(self, connection: Connection) -> None:
        with self._lock:
            new = [each for each in self._leases.values() if each.state == CLAIMED]
        if new and not self._taken_up(connection, new):
            for lease in new:
                self._taken_up(connection, [lease])

    def record_position(self, connection: Connection, lease: Lease, position: int) -> None:
        tell_database(connection, self.subscription, [replace(lease, position=position)])

    def follow_position(self, connection: Connection, lease: Lease, position: int) -> None:
        self.commit(connection, [(lease, position)], [lease.position])

    def suspects(self, connection: Connection, leases: Sequence[Lease]) -> dict[int, Suspect]:
        """Of deaths the store knows, and of attempts the database."""
        found = super().suspects(connection, leases)
        for lease in leases:
            if _term(lease) in self._assigner.inherited:
                known = found.get(
                    lease.partition_id, Suspect(lease.partition_id, True, None, 0, "")
                )
                found[lease.partition_id] = replace(known, died=True)
        return found

    def _taken_up(self, connection: Connection, new: Sequence[Lease]) -> bool:
        """Tell the database of leases, and follow it.  False when it refused one of several."""
        try:
            tell_database(connection, self.subscription, new)
        except (StaleLease, BeyondHighWatermark) as error:
            if len(new) == 1 and isinstance(error, StaleLease):
                self._refused_by_database(connection, new[0], error)
            elif len(new) == 1:
                self._begin(new[0], new[0].position)  # the poll says what is wrong
            return len(new) == 1
        stands = _stands(connection, self.subscription)
        for lease in new:
            partition_id = lease.partition_id
            _, position = stands.get(partition_id, (0, 0))  # not there: the topic was deleted
            if position > lease.position and position > self._registry.position(partition_id):
                self._registry.update_position(
                    partition_id, self.consumer, position, lease.lease_epoch
                )
            self._begin(lease, max(position, lease.position))
        return True

    def _begin(self, lease: Lease, position: int) -> None:
        with self._lock:
            self._told.add(_term(lease))
            if self._is_present(lease):
                begun = replace(self._leases[lease.partition_id], position=position)
                self._leases[lease.partition_id] = self._with_state(begun)

    def _refused_by_database(self, connection: Connection, lease: Lease, error: StaleLease) -> None:
        """Either the lease is another consumer's by now, or the subscription left the store."""
        self._look(connection)
        log.warning("%s", error)
        self.lost(lease)

    # -- the store ------------------------------------------------------------------------------

    def _ask_back(self, partition_ids: Sequence[int]) -> list[int]:
        """Ask the loop to give them back, which it does when nothing of them is in hand."""
        self._asked_back |= {
            (each, self._assigner.held[each].lease_epoch) for each in partition_ids
        }
        return []

    def _check_in(self) -> None:
        with self._check_in_lock:
            begun = self._clock()
            self._assigner.check_in()
            # A lease that was asked back stays so: the loop has dropped its events.
            terms = {(each, lease.lease_epoch) for each, lease in self._assigner.held.items()}
            self._asked_back &= terms
            self._assigner.inherited &= terms
            with self._lock:
                self._told &= terms
                leases = {
                    partition_id: self._lease(self._places[partition_id], held)
                    for partition_id, held in self._assigner.held.items()
                    if partition_id in self._places
                }
                self._install(leases, begun)
        self.wake()

    def _lease(self, place: KnownPartition, held: Holding) -> Lease:
        known = self._leases.get(held.partition_id)
        claimed = Lease(
            topic=place.topic,
            partition=place.partition,
            partition_id=held.partition_id,
            lease_epoch=held.lease_epoch,
            state=CLAIMED,
            position=held.position,
            # A restore after the claim shows at the next poll.
            history=known.history if known is not None else place.history,
        )
        return self._with_state(self._newest(claimed))

    def _with_state(self, lease: Lease) -> Lease:
        if _term(lease) in self._asked_back:
            return replace(lease, state="RELEASING")
        return replace(lease, state="ACTIVE" if _term(lease) in self._told else CLAIMED)

    def _renew(self) -> None:
        """Run in a separate thread, so that no handler and no database delays a renewal."""
        failures, pause = 0, self.member.heartbeat_seconds
        while not self._ended.is_set():
            if self._hurry.wait(pause) and not self._ended.wait(HURRY_SECONDS):
                self._hurry.clear()
            if self._ended.is_set():
                return
            try:
                self._check_in()
                failures, pause = 0, self.member.heartbeat_seconds
            except Exception as error:
                if isinstance(error, DuplicateSession):
                    self._forget_all()
                if not isinstance(error, PenstockError):
                    log.exception("check-in of %s failed", self.consumer)
                log.warning("check-in of %s failed: %s", self.consumer, error)
                failures += 1
                pause = min(backoff(failures), self.member.heartbeat_seconds)

    # -- the database ---------------------------------------------------------------------------

    def _watch(self) -> None:
        connection: Connection | None = None
        while not self._ended.wait(LOOK_SECONDS):
            try:
                connection = connection or database.connect(self.url)
                self._look(connection)
                # One consumer copies: the leader that the store elects, with any assigner.
                if self._registry.lead(self.consumer) is not None:
                    copy_positions(connection, self.subscription, self._registry)
            except Exception as error:
                if isinstance(error, PositionsElsewhere):
                    self._refused = error
                log.warning("positions of %s were not copied: %s", self.subscription, error)
                if connection is not None:
                    connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _require_free(self, connection: Connection) -> None:
        """Refuse a subscription that has live consumers in the database."""
        members = subscriptions.members(connection, self.subscription)
        live = sorted(each.consumer for each in members if each.live)
        if live:
            raise PositionsElsewhere(
                f"{', '.join(live)} keep leases of {self.subscription!r} in the database",
                hint="stop them, then `penstock subscription move`; all consumers of a "
                "subscription have one coordination",
            )

    def _look(self, connection: Connection) -> None:
        """Read the subscription's partitions.  Raises PositionsElsewhere when it left the store."""
        self._require_free(connection)
        found = subscriptions.describe_subscription(connection, self.subscription)
        places = _places(connection, self.subscription, found.topics)
        _require_ahead(self._registry.snapshot(), places, self.subscription)
        if not places.keys() <= self._places.keys():
            self._registry.initialize(
                {each: place.position for each, place in places.items()},
                lease_epoch=max(place.lease_epoch for place in places.values()),
            )
        self._paused = found.paused_at is not None
        self._places = places


def _term(lease: Lease) -> tuple[int, int]:
    return lease.partition_id, lease.lease_epoch


def _stands(connection: Connection, subscription: str) -> dict[int, tuple[int, int]]:
    """The lease_epoch and the position that the database knows, by partition id."""
    rows = database.call(connection, "lease_states", subscription=subscription)
    return {
        partition_id: (int(lease_epoch), int(position))
        for partition_id, _, _, lease_epoch, position in rows
    }


def _places(
    connection: Connection, subscription: str, topics: Sequence[str]
) -> dict[int, KnownPartition]:
    """Every partition of a subscription, by its id."""
    known = _stands(connection, subscription)
    return {
        partition_id: KnownPartition(topic, number, history, *known[partition_id])
        for topic in topics
        for number, _, _, history, partition_id in database.call(
            connection, "high_watermarks", topic=topic
        )
        if partition_id in known
    }


def _require_ahead(
    snapshot: Snapshot, places: dict[int, KnownPartition], subscription: str
) -> None:
    """Refuse a database ahead of the store in lease_epoch: somebody has read or sought there.

    Its position may be ahead, by the dead letter of a consumer that then ended.
    """
    for partition_id, place in places.items():
        held = snapshot.partitions.get(partition_id)
        if held is not None and place.lease_epoch > held.lease_epoch:
            raise PositionsElsewhere(
                f"{subscription!r} has moved on in the database: {place.topic} partition "
                f"{place.partition} is at {place.position} in the database and at "
                f"{held.position} in the store",
                hint="after a seek, a restore or work with leases in the database, begin with "
                "another ?prefix= in the URL of coordination",
            )


def _require_log(lease: Lease, end: int, history: int) -> None:
    if history != lease.history or end < lease.position:
        raise LogBehind(
            f"{lease.topic} partition {lease.partition} ends at {end} in history {history}, and "
            f"{lease.position} in history {lease.history} was read",
            hint="a restore lost commits: look at `penstock restore status`",
        )


def _assigner(assign: str, weight: float) -> Callable[[LeaseRegistry, str], Assigner]:
    kind, _, rest = assign.partition(":")
    if assign == "stealing":
        return lambda registry, consumer: WorkStealing(registry, consumer, weight=weight)
    if assign == "coordinated":
        return lambda registry, consumer: Coordinated(registry, consumer, weight=weight)
    place, _, places = rest.partition("/")
    if kind == "pinned" and place.isdigit() and places.isdigit():
        return lambda registry, consumer: Pinned(registry, consumer, int(place), int(places))
    raise InvalidArgument(
        f"assign is {assign!r}", hint="use stealing, coordinated or pinned:PLACE/PLACES"
    )
