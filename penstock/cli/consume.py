"""``penstock consume``: a consumer of a subscription that writes what it gets."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from penstock import database, subscriptions
from penstock.cli.archive_targets import ArchiveTargets, archive_targets
from penstock.cli.events import as_line, until_interrupted
from penstock.cli.output import Lines, say, show_line
from penstock.consumer.stream.cold_reads import ColdReads
from penstock.errors import StaleLease
from penstock.leases.held import HeldLeases
from penstock.leases.keepers import keeper_for
from penstock.leases.loop import Rounds
from penstock.records import Lease
from penstock.subscriptions import stream

if TYPE_CHECKING:
    from penstock.archive.targets import Target
    from penstock.consumer.stream.cold_reads import Poll
    from penstock.database import Connection

_AT_ONCE = 500
_IDLE_SECONDS = 0.5


class Printer(Rounds):
    """Writes each event once.  Then it commits the position, or only reads on."""

    def __init__(
        self,
        subscription: str,
        topics: list[str] | None,
        *,
        consumer_id: str | None,
        as_json: bool,
        commits: bool,
        max_events: int | None,
        targets: Sequence[Target] = (),
    ) -> None:
        keeper = keeper_for(None, subscription, consumer_id=consumer_id, topics=topics)
        self.keeper = keeper
        super().__init__(HeldLeases(keeper), idle_seconds=_IDLE_SECONDS)
        self._poll: Poll = keeper.poll
        if targets:
            self._poll = ColdReads(subscription, keeper.poll, targets).poll
        self._as_json = as_json
        self._commits = commits
        self._max_events = max_events
        #: Where each partition was read to, if that is not committed.
        self._read_to: dict[int, Lease] = {}
        self.stop = threading.Event()

    def run_until_idle(self) -> None:
        """Run until no held partition has unread events."""
        with self.keeper, self.open() as connection:
            while not self.stop.is_set() and self.turn(connection):
                pass

    def round(self, connection: Connection) -> int:
        """One poll.  Returns how many events were written."""
        before = self.stats.events
        ready = [self._as_read(lease) for lease in self.keeper.active()]
        if ready:
            for lease, events in self._poll(connection, ready, self._room(), None):
                for event in events:
                    if self._as_json:
                        show_line(event)
                    else:
                        sys.stdout.write(f"{as_line(event)}\n")
                # Before the position moves, so that events which were not written come again.
                sys.stdout.flush()
                try:
                    self._move(connection, lease, events[-1].sequence)
                except StaleLease as error:
                    self.stats.stale(error)
                    self.keeper.lost(lease)
                else:
                    self.stats.done(len(events))
        if self._room() == 0:
            self.stop.set()
        return self.stats.events - before

    def _move(self, connection: Connection, lease: Lease, sequence: int) -> None:
        if not self._commits:
            # To the keeper, a stored position behind its own one is that of a restored database.
            self._read_to[lease.partition_id] = replace(lease, position=sequence)
            return
        member, last = self.keeper.member, (lease, sequence)
        stream.commit(connection, member, [last], after=[lease.position])
        self.keeper.moved(lease, sequence)

    def _as_read(self, lease: Lease) -> Lease:
        """A lease with the position to read on from.  A new lease_epoch may mean a seek."""
        read = self._read_to.get(lease.partition_id)
        if read is None or read.lease_epoch != lease.lease_epoch:
            return lease
        return read

    def _room(self) -> int:
        if self._max_events is None:
            return _AT_ONCE
        return min(_AT_ONCE, self._max_events - self.stats.events)


def consume(
    subscription: str,
    topic: Annotated[
        list[str] | None, typer.Argument(help="Only these topics of it, else all.")
    ] = None,
    *,
    lines: Annotated[
        Lines, typer.Option("--format", help="text, or one JSON object a line")
    ] = Lines.text,
    commit: Annotated[
        bool, typer.Option("--commit", help="Move the position past what was written.")
    ] = False,
    max_events: Annotated[
        int | None, typer.Option("--max", min=1, help="Leave after so many events.")
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Leave when nothing is left to read.")
    ] = False,
    consumer_id: Annotated[
        str | None, typer.Option("--id", help="The consumer's id; else host and process.")
    ] = None,
    target: ArchiveTargets = None,
) -> None:
    """Join a subscription and write the events of the partitions that it is handed."""
    printer = Printer(
        subscription,
        topic or None,
        consumer_id=consumer_id,
        as_json=lines is Lines.json,
        commits=commit,
        max_events=max_events,
        targets=archive_targets(target),
    )
    told = _say_if_paused(subscription)
    with until_interrupted(), _asked_by_signals(printer.stop):
        if until_idle:
            printer.run_until_idle()
            if not told and not printer.stats.events:
                _say_if_paused(subscription)
        else:
            printer.run(printer.stop)
    if not commit and printer.stats.events:
        say("nothing was committed: the same events come again (--commit moves the position)")


def _say_if_paused(subscription: str) -> bool:
    """Say so if the subscription is paused, as then no events come.  Returns whether it is."""
    with database.connect() as connection:
        found = subscriptions.describe_subscription(connection, subscription)
    if found.paused_at is None:
        return False
    reason = f" ({found.paused_reason!r})" if found.paused_reason else ""
    resume = shlex.join(["penstock", "subscription", "resume", subscription])
    say(f"subscription {subscription} is paused{reason}: it hands out nothing until `{resume}`")
    return True


@contextmanager
def _asked_by_signals(stop: threading.Event) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM lets it finish the events in hand.  A second one does not."""

    def ask(number: int, _: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.default_int_handler)

    before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
