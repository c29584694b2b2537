"""Keeps the leases and positions of a consumer in a store other than the database.

The store is etcd, Redis or memory.  One thread renews and checks in with the store.  Another thread
looks into the database for new partitions, a pause or a seek.  It also copies the positions there,
because retention goes by them.
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
    ConfigurationError,
    DuplicateSession,
    InvalidArgument,
    LogBehind,
    PenstockError,
    PositionsElsewhere,
)
from penstock.leases.coordination import LeaseRegistry, Snapshot, open_registry
from penstock.leases.coordination.assigners import Assigner, Coordinated, Pinned, WorkStealing
from penstock.leases.coordination.marks import SECONDS, copy_positions
from penstock.leases.keeper import Keeper
from penstock.log import fetch
from penstock.records import Event, Lease
from penstock.subscriptions import dead_letters
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


class Place(NamedTuple):
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
        self._office = threading.Lock()
        self._asked_back: set[tuple[int, int]] = set()
        self._places: dict[int, Place] = {}
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
                )
                self._look(connection)
                self._assigner = self._make_assigner(self._registry, self.consumer)
                self._assigner.may_go = self._ask_back
                self._assigner.join()
                self._check_in()
            except BaseException:
                self._registry.close()
                raise
        log.warning(
            "%s keeps its leases in %s: events that fail are repeated without end, because "
            "dead letters and parked keys need leases in the database",
            self.consumer,
            config.redact(self._coordination),
        )
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
        if self._paused:
            return []
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
            self.moved(lease, position)

    def release(self, connection: Connection, leases: Sequence[Lease]) -> None:
        with self._office:
            for lease in leases:
                self._assigner.give_back(lease.partition_id, lease.lease_epoch)

    def position(self, connection: Connection, lease: Lease) -> int:
        return self._registry.position(lease.partition_id)

    def held(self, connection: Connection) -> list[Lease]:
        with self._lock:
            known = list(self._leases.values())
        return [replace(each, position=self.position(connection, each)) for each in known]

    # -- the store ------------------------------------------------------------------------------

    def _ask_back(self, partition_ids: Sequence[int]) -> list[int]:
        """Ask the loop to give them back, which it does when nothing of them is in hand."""
        self._asked_back |= {
            (each, self._assigner.held[each].lease_epoch) for each in partition_ids
        }
        return []

    def _check_in(self) -> None:
        with self._office:
            begun = self._clock()
            self._assigner.check_in()
            # A lease that was asked back stays so: the loop has dropped its events.
            self._asked_back &= {
                (each, lease.lease_epoch) for each, lease in self._assigner.held.items()
            }
            with self._lock:
                leases = {
                    partition_id: self._lease(self._places[partition_id], held)
                    for partition_id, held in self._assigner.held.items()
                    if partition_id in self._places
                }
                self._install(leases, begun)
        self.wake()

    def _lease(self, place: Place, held: Holding) -> Lease:
        known = self._leases.get(held.partition_id)
        is_asked_back = (held.partition_id, held.lease_epoch) in self._asked_back
        claimed = Lease(
            topic=place.topic,
            partition=place.partition,
            partition_id=held.partition_id,
            lease_epoch=held.lease_epoch,
            state="RELEASING" if is_asked_back else "ACTIVE",
            position=held.position,
            # A restore after the claim shows at the next poll.
            history=known.history if known is not None else place.history,
        )
        return self._newest(claimed)

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
        places = places_of(connection, self.subscription, found.topics)
        require_nothing_parked(connection, self.subscription, places)
        _require_ahead(self._registry.snapshot(), places, self.subscription)
        if not places.keys() <= self._places.keys():
            self._registry.initialize(
                {each: place.position for each, place in places.items()},
                lease_epoch=max(place.lease_epoch for place in places.values()),
            )
        self._paused = found.paused_at is not None
        self._places = places


def places_of(connection: Connection, subscription: str, topics: Sequence[str]) -> dict[int, Place]:
    """Every partition of a subscription, by its id."""
    known = {
        partition_id: (int(lease_epoch), int(position))
        for partition_id, _, _, lease_epoch, position in database.call(
            connection, "lease_states", subscription=subscription
        )
    }
    return {
        partition_id: Place(topic, number, history, *known[partition_id])
        for topic in topics
        for number, _, _, history, partition_id in database.call(
            connection, "high_watermarks", topic=topic
        )
        if partition_id in known
    }


def require_nothing_parked(
    connection: Connection, subscription: str, places: dict[int, Place]
) -> None:
    """Refuse parked keys: later events of a key would be handled before the parked ones."""
    leases = [
        Lease(each.topic, each.partition, partition_id, 0, "AVAILABLE", 0, each.history)
        for partition_id, each in places.items()
    ]
    parked = dead_letters.parked_keys(connection, subscription, leases) if leases else {}
    if parked:
        raise PositionsElsewhere(
            f"{sum(map(len, parked.values()))} keys of {subscription!r} are parked",
            hint="first run consumers with leases in the database: penstock dead-letter list",
        )


def _require_ahead(snapshot: Snapshot, places: dict[int, Place], subscription: str) -> None:
    """Refuse a database ahead of the store: it follows, unless somebody read or sought there."""
    for partition_id, place in places.items():
        held = snapshot.partitions.get(partition_id)
        if held is not None and (
            place.position > held.position or place.lease_epoch > held.lease_epoch
        ):
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
