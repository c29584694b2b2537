"""The options of a consumer: each is listed, typed and checked here, once.

:class:`penstock.Consumer`, :class:`penstock.AsyncConsumer` and ``App.consumer`` take them as
keywords.
"""

from __future__ import annotations

import functools
import inspect
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

from penstock.archive.targets import Target
from penstock.errors import InvalidArgument
from penstock.records import Event
from penstock.topics import validation
from penstock.topics.validation import Range

P = ParamSpec("P")
Self = TypeVar("Self")
Options = TypeVar("Options")

Handler = Callable[[Any], Any]
#: ``middleware(delivered, call_next)`` wraps each call of the handler.
Middleware = Callable[[Any, Handler], Any]


class TopicPartition(NamedTuple):
    """A partition, as on_assigned and on_revoked name it."""

    topic: str
    partition: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerOptions:
    """How a consumer works.  A wrong value raises InvalidArgument.

    The table of docs/reference/consumers.md is made from these comments.
    """

    #: Called with each event; `def` or `async def`.
    handler: Handler | None = None
    #: Called with each `penstock.Batch` instead.
    batch_handler: Handler | None = None
    #: Its name in `penstock status`.  Without one: host, process and a random part.
    consumer_id: str | None = None
    #: Its share of the partitions, against the weights of the others.
    weight: float = 1.0
    #: Only these topics of the subscription.
    topics: Sequence[str] | None = None
    #: How many events a batch has at most, and a poll of one partition.  A poll that reads ahead
    #: brings up to four batches, of as many partitions.
    batch_size: int = 500
    #: The longest pause between two looks at everything.  On PostgreSQL a NOTIFY ends it earlier;
    #: on MySQL and MariaDB a look at one row does, about twelve times a second.
    idle_seconds: float = 0.5
    #: How many handlers run at once, as threads or tasks.  By event: events of one key stay in
    #: order, different keys run side by side, and an event without a key waits for nothing.  By
    #: batch: one batch of each partition at once.
    concurrency: int = 1
    #: Only events of one of these types that have all these headers.  The position passes the
    #: others.  The consumer filters, so the others do travel to it.
    types: Collection[str] | None = None
    headers: Mapping[str, Any] | None = None
    #: How many rows and bytes are read ahead, in a thread with a connection of its own.  All
    #: partitions share the room in equal parts.  Without a value: 5,000 rows with threads or tasks,
    #: else 0: the loop reads between handlers.
    prefetch_rows: int | None = None
    prefetch_bytes: int = 64 * 1024 * 1024
    #: A commit is due after so many events (without a value: `batch_size`) or so long, and after
    #: 5 ms with nothing to do.  One commit covers all partitions that are due.  Where the loop's
    #: own thread handles and no count is given, the time is 10 ms.
    commit_every_events: int | None = None
    commit_every_seconds: float = 1.0
    #: How long one call of a handler may take.
    handler_seconds: float | None = None
    #: Functions around each call of the handler, the first one outermost.
    middleware: Sequence[Middleware] = ()
    #: Called with new partitions and their positions, and with those about to go or lost.
    on_assigned: Callable[[dict[TopicPartition, int]], Any] | None = None
    on_revoked: Callable[[list[TopicPartition]], Any] | None = None
    #: Targets from which it reads events that the database no longer has, the preferred one first.
    #: `penstock.App(archive=...)` gives them to all its consumers.
    archive: Sequence[Target] | None = None
    #: How many events it reads in a second, all partitions together.  After a pause it reads at
    #: most those of one second at once.
    max_events_per_second: float | None = None
    #: For tests: a monotonic clock in seconds, and the source of randomness for pauses.
    clock: Callable[[], float] = time.monotonic
    rng: random.Random | None = None
    #: The store that keeps leases and positions instead of the database (`etcd://`, `redis://`,
    #: `memory://`), and its way of sharing.
    coordination: str | None = None
    assign: str = "stealing"

    def __post_init__(self) -> None:
        for name, allowed in _RANGES.items():
            value = getattr(self, name)
            if value is not None or name not in _MAY_BE_NONE:
                allowed.require(name, value)
        for name in ("on_assigned", "on_revoked"):
            if getattr(self, name) is not None:
                validation.function(name, getattr(self, name))
        require_middleware(self.middleware)
        self._check_filter()
        self._check_archive()

    def _check_archive(self) -> None:
        given: Any = self.archive
        if given is not None and (
            not isinstance(given, Sequence) or not all(isinstance(each, Target) for each in given)
        ):
            raise InvalidArgument(
                "archive is no list of targets",
                hint="give a list of penstock.archive.targets.Target",
            )

    def _check_filter(self) -> None:
        if isinstance(self.types, str):
            raise InvalidArgument("types is a single string", hint="give a list of event types")
        if self.types is not None:
            object.__setattr__(self, "types", frozenset(self.types))
            if not self.types:
                raise InvalidArgument(
                    "types is empty: nothing would be handled", hint="leave it out"
                )
        if self.headers is not None and not isinstance(self.headers, Mapping):
            raise InvalidArgument(
                f"headers is a {type(self.headers).__name__}",
                hint="give a dict of names and values",
            )

    def given(self) -> dict[str, Any]:
        """The value of each option, by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def by_key(self) -> bool:
        """Whether handlers work on several keys of one partition at once."""
        return self.concurrency > 1 and self.batch_handler is None

    @property
    def commit_events(self) -> float:
        """After how many events a position is committed."""
        return self.commit_every_events or self.batch_size

    @property
    def most_uncommitted(self) -> int:
        """How many events of a partition that is handled in order are handed out for one commit."""
        return max(int(self.commit_events), self.batch_size)

    def wanted(self) -> Callable[[Event], bool] | None:
        """Which events are handled: those of one of the types that have all these headers."""
        types, headers = self.types, dict(self.headers or {})
        if types is None and not headers:
            return None

        def wanted(event: Event) -> bool:
            if types is not None and event.type not in types:
                return False
            if not headers:
                return True
            found = event.headers
            return all(name in found and found[name] == value for name, value in headers.items())

        return wanted


_RANGES = {
    "batch_size": Range(1, is_whole=True),
    "concurrency": Range(1, is_whole=True),
    "prefetch_bytes": Range(1, is_whole=True),
    "prefetch_rows": Range(0, is_whole=True),
    "idle_seconds": Range(0),
    "commit_every_seconds": Range(0),
    "commit_every_events": Range(0, is_above=True),
    "handler_seconds": Range(0, is_above=True),
    "max_events_per_second": Range(0, is_above=True),
}
_MAY_BE_NONE = (
    "prefetch_rows", "commit_every_events", "handler_seconds", "max_events_per_second",
)  # fmt: skip


def require_middleware(given: object) -> None:
    """Refuse what is no list of functions."""
    if not isinstance(given, Sequence):
        raise InvalidArgument(
            f"middleware is a {type(given).__name__}", hint="give a list of functions"
        )


def options_of(kind: Callable[P, Options], given: Mapping[str, Any]) -> Options:
    """The options of a consumer from keywords; a name that is no option is refused."""
    make: Any = kind
    validation.known(given, [each.name for each in fields(make)], "a consumer")
    made: Options = make(**given)
    return made


def _require_place(url: object, subscription: object) -> None:
    """An address first, and then a name.  Addresses hold passwords, so none is repeated."""
    if url is not None and not isinstance(url, str):
        raise InvalidArgument(
            f"the address of a consumer's database is a {type(url).__name__}",
            hint="a consumer opens its own connections: give the URL, or None for that of the "
            "environment",
        )
    name = validation.name(cast("str", subscription), "subscription")
    is_address = url is None or "://" in url or "=" in url
    if "://" in name and not is_address:  # a name may look like an address
        raise InvalidArgument(
            "the name of the subscription is an address",
            hint='the address comes first: Consumer(url, "billing", handler=bill)',
        )


def taking(
    options: Callable[P, Options],
) -> Callable[
    [Callable[[Self, str | None, str, Options], None]],
    Callable[Concatenate[Self, str | None, str, P], None],
]:
    """An ``__init__`` that takes the options as keywords, for callers and for type checkers."""

    def decorate(
        init: Callable[[Self, str | None, str, Options], None],
    ) -> Callable[Concatenate[Self, str | None, str, P], None]:
        @functools.wraps(init)
        def spread(self: Any, url: Any, subscription: Any, *args: Any, **given: Any) -> None:
            _require_place(url, subscription)
            if args:
                raise InvalidArgument(
                    "handler and options are given by name",
                    hint='write Consumer(url, "billing", handler=bill)',
                )
            init(self, url, subscription, options_of(options, given))

        own = list(inspect.signature(init).parameters.values())[:3]
        named = list(inspect.signature(options).parameters.values())
        taken: Any = spread
        taken.__signature__ = inspect.Signature([*own, *named])
        return cast("Callable[Concatenate[Self, str | None, str, P], None]", taken)

    return decorate
