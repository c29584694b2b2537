"""What the tests of streams share.  The rest is in tests.kit.log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock import subscriptions
from penstock.leases.database_keeper import LeaseKeeper
from penstock.leases.keeper import Keeper
from penstock.leases.loop import Rounds
from penstock.publishing.publish import publish_batch
from penstock.records import Lease, Message
from penstock.subscriptions import policies, stream
from penstock.subscriptions.stream import Membership
from tests.kit.log import Connection, drain, topic

SUBSCRIPTION = "tests"
STREAM = "tests/stream"


def filled(
    connection: Connection, partitions: int = 1, events: int = 10, name: str = STREAM
) -> str:
    """A new topic with sequenced events in every partition, and a subscription to it."""
    topic(connection, partitions, name)
    more(connection, partitions, events, name=name)
    stream.subscribe(connection, SUBSCRIPTION, [name])
    return name


def more(
    connection: Connection,
    partitions: int = 1,
    events: int = 10,
    *,
    name: str = STREAM,
    start: int = 1,
) -> None:
    """Further events in every partition, numbered from ``start``."""
    publish_batch(
        connection,
        [
            Message(name, str(number).encode(), partition=partition)
            for number in range(start, start + events)
            for partition in range(partitions)
        ],
    )
    drain(connection)


def short_leases(connection: Connection, lease_seconds: float = 0.6) -> None:
    """Leases that end while a test waits."""
    stream.configure_subscription(
        connection,
        SUBSCRIPTION,
        heartbeat_seconds=lease_seconds / 3,
        lease_seconds=lease_seconds,
        release_seconds=lease_seconds,
    )


def slow_leases(connection: Connection) -> None:
    """Leases that do not end while a test waits."""
    stream.configure_subscription(
        connection, SUBSCRIPTION, heartbeat_seconds=60, lease_seconds=180, release_seconds=60
    )


class Clock:
    """A monotonic clock that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def beat(connection: Connection, keeper: Keeper) -> None:
    """Send a heartbeat of a consumer now, before it is due."""
    assert isinstance(keeper, LeaseKeeper)
    member, begun = keeper.begin_beat()
    (answer,) = stream.heartbeats(connection, [member], alone=True)
    keeper.beaten(member, begun, answer)


def check_in(keeper: Keeper) -> None:
    """Make a check-in of a consumer now, before it is due."""
    assert isinstance(keeper, LeaseKeeper)
    keeper.check_in()


def retry(connection: Connection, *, longest: float = 0.02, **settings: float | str) -> None:
    """Short pauses between attempts."""
    wanted = {"first_backoff_seconds": min(0.01, longest), "longest_backoff_seconds": longest}
    policies.set_policy(
        connection, "retry", wanted | settings, scope="subscription", name=SUBSCRIPTION
    )


def member_with_lease(connection: Connection, consumer: str) -> tuple[Membership, Lease]:
    """A member that holds the only partition."""
    member = stream.join(connection, SUBSCRIPTION, consumer)
    (lease,) = stream.check_in(connection, member)
    return member, lease


def end_lease(connection: Connection, consumer: str) -> None:
    """Make the leases of a consumer end, as if their time had passed."""
    done = connection.execute(
        "UPDATE penstock.consumers SET deadline = clock_timestamp() - interval '1 ms'"
        " WHERE id = %s",
        (consumer,),
    )
    assert done.rowcount == 1


def stored(connection: Connection, partition: int = 0, name: str = STREAM) -> int:
    """The committed position of the subscription in a partition."""
    return stream.position(connection, SUBSCRIPTION, name)[partition]


def holders(connection: Connection) -> dict[int, str]:
    """The holder of each partition, by its number."""
    return {
        lag.partition: lag.holder
        for lag in subscriptions.lag(connection, SUBSCRIPTION)
        if lag.holder is not None
    }


@contextmanager
def running(consumer: Rounds) -> Iterator[threading.Event]:
    """Run the consumer in a thread.  At the end it is stopped, and its error is raised again."""
    stop = threading.Event()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            consumer.run(stop)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive(), "the consumer does not stop"
    if raised:
        raise raised[0]
