"""Relay: carry a subscription to a sink, in recorded blocks, exactly once where the sink can.

A relay is a consumer of a stream subscription: it joins, holds leases and is fenced like any other.
For each partition it (1) records the range that it is about to send, the block, (2) reads it, (3)
gives it to the sink, (4) commits its end. If it is killed or paused anywhere in between, its
successor finds the open block and sends exactly the same one. The sinks store it once
(`ops.sinks`).

A sink that does not answer is tried again after a backoff, and the database counts the attempts. An
event that the sink refuses goes to the dead letters, and its block goes on without it. Every
skipped event has a row that says so, and every attempt is counted.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ops.relay.block import DEFAULT_BACKOFF, Backoff, Begun, BlockResult, relay_once
from ops.relay.channels import Channels
from ops.relay.pauses import Pauses
from ops.sinks.base import Sink, SinkMisconfigured, SinkUnavailable
from penstock import subscriptions
from penstock.database.backoff import doubled
from penstock.errors import (
    LogBehind,
    PenstockError,
    StaleLease,
    TopicNotFound,
    error_text,
    is_interruption,
)
from penstock.leases.held import HeldLeases
from penstock.leases.keepers import keeper_for
from penstock.leases.loop import Rounds
from penstock.log.restores import Seen, require_log
from penstock.records import Lease
from penstock.topics import names
from penstock.topics.partition_ids import topic_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.archive.targets import Target
    from penstock.database import Connection

log = logging.getLogger(__name__)

_MICRO_BATCH_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class RelayResult:
    """What a micro-batch did.  ``drained``: its partitions had nothing left to send."""

    events: int
    blocks: int
    dead_letters: int
    failures: int
    drained: bool
    last_error: str


class Relay(Rounds):
    """Relays a subscription until it is told to stop: the continuous form.

    The caller opens and closes the sink.
    """

    def __init__(
        self,
        url: str | None,
        subscription: str,
        sink: Sink,
        *,
        consumer_id: str | None = None,
        weight: float = 1.0,
        idle_seconds: float = 0.5,
        backoff: Backoff = DEFAULT_BACKOFF,
        archive: Sequence[Target] = (),
    ) -> None:
        """Make a relay. Below the low sequence it reads the ``archive`` targets."""
        keeper = keeper_for(url, subscription, consumer_id=consumer_id, weight=weight)
        self.keeper = keeper
        super().__init__(HeldLeases(keeper), idle_seconds=idle_seconds)
        self.sink = sink
        self._channels = Channels(sink, subscription)
        self.dead_letters = 0
        self._backoff = backoff
        self._archive = tuple(archive)
        self._proven: dict[str, int] = {}
        self._known_as: dict[int, str] = {}
        self._compared: dict[int, int] = {}
        self._begun: dict[int, Begun] = {}
        self._compared_on: Connection | None = None
        self.pauses = Pauses()

    def preflight(self, connection: Any, topics: list[str]) -> None:
        """Prove that the sink can take these topics; SinkMisconfigured says what to set."""
        for topic in topics:
            found = names.describe_topic(connection, topic)
            partitions = len(found.partitions)
            with _asked(self.sink):
                self.sink.preflight(topic, partitions)
            self._proven[topic] = partitions
            self._known_as[found.topic_id] = found.known_as

    def run_for(self, max_seconds: float, *, until_drained: bool = False) -> RelayResult:
        """Relay what is there, for at most about ``max_seconds``.

        A failing sink is tried again meanwhile.  With ``until_drained`` it also waits for the
        partitions that others hold: one that died holds them until its lease ends.
        """
        deadline = time.monotonic() + max_seconds
        pause = threading.Event()
        with self.keeper, closing(self._channels), self.open() as connection:
            with suppress(SinkUnavailable):  # its first turn meets it again and counts it
                self.preflight(connection, sorted({lease.topic for lease in self.keeper.leases()}))
            while time.monotonic() < deadline:
                if self.turn(connection):
                    continue
                if not self.pauses and not (until_drained and self._lags(connection)):
                    break
                pause.wait(_MICRO_BATCH_POLL_SECONDS)
            drained = not self._lags(connection)
        stats = self.stats
        return RelayResult(
            stats.events,
            stats.batches,
            self.dead_letters,
            stats.failures,
            drained,
            stats.last_error,
        )

    def round(self, connection: Connection) -> int:
        """Relay one block of each held partition.  Returns how many events are finished."""
        self._channels.keep(self.keeper.leases())
        done = 0
        for lease in self.keeper.active():
            if not self.pauses.is_over(lease):
                continue
            self.stats.last_round = time.monotonic()
            if self.keeper.holds(lease):
                done += self._relay(connection, lease)
        return done

    def let_go(self, connection: Connection, asked: list[Lease]) -> list[Lease]:
        """All of them: a block is sent and committed in one round."""
        for lease in asked:
            self._channels.drop(lease)
        return asked

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The channels are closed before the leases are given back."""
        with super().at_work(), closing(self._channels):
            yield

    def _lags(self, connection: Connection) -> bool:
        """Whether a partition has events that are not sent, whoever holds it."""
        found = subscriptions.lag(connection, self.keeper.member.subscription)
        return any(each.lag_events for each in found)

    def _relay(self, connection: Connection, lease: Lease) -> int:
        try:
            known_as = self._prove(connection, lease)
            self._compare(connection, lease, known_as)
            member = self.keeper.member
            result = relay_once(
                connection,
                member,
                lease,
                self._channels,
                self._backoff,
                begun=self._begun,
                targets=self._archive,
            )
        except StaleLease as error:
            self.stats.stale(error)
            self.keeper.lost(lease)
            return 0
        except PenstockError as error:
            if isinstance(error, SinkMisconfigured) and not self._proven:
                raise  # at the start, a person sees it; later, other partitions go on
            # No block was open yet, so the database has nothing to count the failure on.
            if isinstance(error, LogBehind):  # recorded, so that all readers are stopped
                self._compared.pop(lease.partition_id, None)
            shortest, longest = self._backoff.base_seconds, self._backoff.max_seconds
            pause = doubled(self.pauses.attempts(lease) + 1, shortest, longest)
            self._pause(lease, pause, error_text(error))
            return 0
        if result is None:
            self.pauses.end(lease)
            return 0
        return self._settled(lease, result)

    def _prove(self, connection: Connection, lease: Lease) -> str:
        """Check the sink once for each topic and address.

        Returns the name by which the sink knows it.
        """
        topic_id = topic_of(lease.partition_id)
        if lease.partition >= self._proven.get(lease.topic, 0) or topic_id not in self._known_as:
            self.preflight(connection, [lease.topic])
        if topic_id not in self._known_as:
            self.keeper.check_in_soon()
            raise TopicNotFound(f'"{lease.topic}" has become another topic\'s address')
        return self._known_as[topic_id]

    def _compare(self, connection: Connection, lease: Lease, known_as: str) -> None:
        """Check that the log reaches what the sink holds, once for each lease and connection.

        When the log turns out to be put back, it checks again, and also what was begun under this
        lease.
        """
        if connection is not self._compared_on:
            self._compared_on = connection
            self._compared.clear()
        if self._compared.get(lease.partition_id) == lease.lease_epoch:
            return
        relay = self.keeper.member.subscription
        try:
            with _asked(self.sink):
                seen = self._channels.of(lease, known_as).seen()
        except BaseException:
            self._channels.drop(lease)
            raise
        places = [] if seen is None else [seen]
        begun = self._begun.get(lease.partition_id)
        if begun is not None and begun.lease_epoch == lease.lease_epoch:
            places.append(Seen(begun.last_sequence, lease.history))
        if places:
            furthest = max(places, key=lambda each: (each.history, each.sequence))
            source = f'{self.sink.name} of the relay "{relay}"'
            require_log(connection, {lease.partition_id: furthest}, source, relay)
        self._compared[lease.partition_id] = lease.lease_epoch

    def _settled(self, lease: Lease, result: BlockResult) -> int:
        self.dead_letters += result.dead_letters
        if result.retry_after is not None:
            self._pause(lease, result.retry_after, result.error)
            return 0
        self.pauses.end(lease)
        self.keeper.moved(lease, result.last_sequence)
        self.stats.done(result.events)
        return result.events + result.dead_letters

    def _pause(self, lease: Lease, seconds: float, error: str) -> None:
        self.pauses.begin(lease, seconds)
        self.stats.failures += 1
        self.stats.last_error = error
        log.warning(
            "relay of %s partition %s to %s failed, again in %.1f s: %s",
            lease.topic,
            lease.partition,
            self.sink.name,
            seconds,
            error,
        )


@contextmanager
def _asked(sink: Sink) -> Iterator[None]:
    """Whatever a sink raises in the block is a failed attempt, as it is when a block is sent."""
    try:
        yield
    except PenstockError:
        raise
    except BaseException as error:
        if is_interruption(error):
            raise
        log.error("the sink %s failed with an unexpected error", sink.name, exc_info=error)
        raise SinkUnavailable(f"the sink {sink.name} failed: {error_text(error)}") from error


def relay_micro_batch(
    url: str | None,
    subscription: str,
    sink: Sink,
    max_seconds: float = 60,
    *,
    archive: Sequence[Target] = (),
) -> RelayResult:
    """Relay what is there and end: the form for a scheduled run.

    Below the low sequence it reads the ``archive`` targets.

    SinkMisconfigured when the sink is not set up right. Other failures are in the result.
    """
    return Relay(url, subscription, sink, archive=archive).run_for(max_seconds)
