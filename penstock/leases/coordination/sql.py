"""The registry in the subscription's own database: the leases and positions of every consumer.

:class:`penstock.Consumer` works with the same rows, through the same functions.  The lease time is
the subscription's own.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock import database
from penstock.database import config
from penstock.errors import CoordinationUnavailable, InvalidArgument, UnknownConsumer
from penstock.leases.coordination.registry import (
    Assignment,
    Holding,
    LeaseRegistry,
    Snapshot,
    require_position,
    stale,
    unknown,
)

if TYPE_CHECKING:
    from penstock.database import Connection


class SqlRegistry(LeaseRegistry):
    """The registry of a subscription that exists in the database at ``url``.

    Each call is a separate transaction, one at a time.  A lost connection is replaced at the next
    call.
    """

    def __init__(self, url: str, subscription: str) -> None:
        super().__init__()
        self._url = url
        self._subscription = subscription
        self._lock = threading.Lock()
        self._connection: Connection | None = database.connect(url)

    def initialize(self, positions: Mapping[int, int], *, lease_epoch: int = 0) -> int:
        """Refuse unknown partitions, and return 0: the subscription's topics define them."""
        snapshot = self.snapshot()
        for partition_id in positions:
            if partition_id not in snapshot.partitions:
                raise InvalidArgument(
                    f"the subscription {self._subscription!r} does not read partition "
                    f"{partition_id}",
                    hint="subscribe it to the topic: penstock.stream.subscribe()",
                )
        return 0

    def _register(self, consumer: str, session: str, weight: float) -> None:
        run = uuid.UUID(session)
        self._call("join", consumer=consumer, session=run, weight=weight, topics=None)

    def deregister(self, consumer: str) -> None:
        session = self._sessions.pop(consumer, None)
        if session is not None:
            self._call("leave", consumer=consumer, session=uuid.UUID(session))

    def renew(self, consumer: str) -> None:
        if consumer not in self.active_consumers():
            # Until a check-in collects the dead consumer, a heartbeat would bring it back.
            raise unknown(consumer)
        self._call("heartbeat", **self._member(consumer))

    def claim(self, partition_id: int, consumer: str, lease_epoch: int) -> Holding | None:
        where = {"partition_id": partition_id, "lease_epoch": lease_epoch}
        ((position,),) = self._call("claim", **self._member(consumer), **where)
        if position is None:
            self._known(self.snapshot(), partition_id)
            return None
        return Holding(partition_id, consumer, True, lease_epoch + 1, int(position))

    def release(self, partition_id: int, consumer: str, lease_epoch: int) -> bool:
        ((freed,),) = self._call(
            "release",
            consumer=consumer,
            partition_ids=[partition_id],
            lease_epochs=[lease_epoch],
        )
        return bool(freed)

    def update_position(
        self, partition_id: int, consumer: str, position: int, lease_epoch: int
    ) -> None:
        if consumer not in self._sessions:
            raise stale(f"consumer {consumer!r} is not registered here")
        self._call(
            "commit",
            consumer=consumer,
            partition_ids=[partition_id],
            lease_epochs=[lease_epoch],
            positions=[require_position(position)],
            after=None,
        )

    def lead(self, consumer: str) -> int | None:
        ((term,),) = self._call("lead_subscription", **self._member(consumer))
        return None if term is None else int(term)

    def assign(self, consumer: str, term: int, holders: Mapping[int, str]) -> None:
        try:
            self._call(
                "assign_partitions",
                **self._member(consumer),
                term=term,
                holders=json.dumps(dict(holders)),
            )
        except UnknownConsumer as error:
            raise stale(f"term {term} of leader {consumer!r} is over") from error

    def snapshot(self) -> Snapshot:
        with self._connected() as connection:
            binds = {"subscription": self._subscription}
            states = database.call(connection, "lease_states", **binds)
            consumers = database.call(connection, "active_consumers", **binds)
            decided = database.call(connection, "assignment_of", **binds)
        holdings = (Holding(p, holder, bool(live), e, at) for p, holder, live, e, at in states)
        return Snapshot(
            {name: float(weight) for name, weight in consumers},
            {each.partition_id: each for each in holdings},
            _assignment(*decided[0]) if decided else Assignment(),
        )

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _member(self, consumer: str) -> dict[str, Any]:
        return {"consumer": consumer, "session": uuid.UUID(self._session(consumer))}

    def _call(self, name: str, **binds: Any) -> list[tuple[Any, ...]]:
        with self._connected() as connection:
            return database.call(connection, name, subscription=self._subscription, **binds)

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with self._lock:
            if self._connection is None:
                self._connection = database.connect(self._url)
            try:
                yield self._connection
            except Exception as error:
                if not database.is_unavailable(error):
                    raise
                self._connection.close()
                self._connection = None
                raise CoordinationUnavailable(
                    f"the database at {config.redact(self._url)} does not answer: {error}",
                    hint="try again: the next call connects again",
                ) from error


def _assignment(term: int, holders: str) -> Assignment:
    return Assignment(term, {int(p): who for p, who in json.loads(holders).items()})
