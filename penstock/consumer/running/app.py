"""The consumers of an application, declared beside its handlers and run by ``penstock worker``.

app = penstock.App()

@app.consumer("billing", topics=["bank/accounts"])
def bill(event): ...

@app.queue("mails", topics=["shop/mails"], concurrency=10)
def send(mail): ...

$ penstock worker module:app
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from penstock import database, subscriptions
from penstock.consumer.handlers.options import ConsumerOptions, options_of
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.queue.options import QueueOptions
from penstock.consumer.running.worker import ConsumerWorker, QueueWorker, Worker
from penstock.consumer.stream.consumer import Consumer
from penstock.database import config, migrate
from penstock.errors import InvalidArgument, SubscriptionNotFound
from penstock.subscriptions import queue, stream

if TYPE_CHECKING:
    from penstock.archive.targets import Target

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(slots=True)
class Declared:
    """One declared consumer.  It has no connection yet."""

    subscription: str
    topics: tuple[str, ...]
    start: str | int
    options: ConsumerOptions | QueueOptions

    def around(self, change: Callable[[Any], Any]) -> Declared:
        """The same declaration with another handler."""
        kind = "handler" if self.options.handler is not None else "batch_handler"
        changed: dict[str, Any] = {kind: change(getattr(self.options, kind))}
        return replace(self, options=replace(self.options, **changed))

    def of_process(self, number: int) -> Declared:
        """The same declaration for one of several processes, which cannot share an id."""
        options = self.options
        if isinstance(options, QueueOptions) or options.consumer_id is None:
            return self
        return replace(
            self, options=replace(options, consumer_id=f"{options.consumer_id}-{number}")
        )


class App:
    """Consumers by subscription; ``url`` is the database, by default the environment's.

    Below the low sequence they read the ``archive`` targets, unless they name others themselves.
    """

    def __init__(self, url: str | None = None, *, archive: Sequence[Target] | None = None) -> None:
        self.url = url
        self.archive = archive
        self.consumers: dict[str, Declared] = {}

    def consumer(
        self,
        subscription: str,
        *,
        topics: Iterable[str] = (),
        start: str | int = "earliest",
        batch: bool = False,
        **options: Any,
    ) -> Callable[[Function], Function]:
        """Consume with the function below; ``batch`` gives it a :class:`penstock.Batch`.

        With ``topics``, the worker makes the subscription when it starts, unless there is one.
        A new subscription reads from ``start`` on.  The other options are those of
        :class:`penstock.Consumer`.
        """
        given = options_of(ConsumerOptions, options)
        kind = "batch_handler" if batch else "handler"
        return self._declaring(subscription, topics, start, given, kind)

    def queue(
        self,
        subscription: str,
        *,
        topics: Iterable[str] = (),
        start: str | int = "earliest",
        **options: Any,
    ) -> Callable[[Function], Function]:
        """Work off a queue with the function below; it gets a :class:`penstock.QueueDelivery`.

        The options are those of :class:`penstock.QueueConsumer`, the rest is as for a consumer.
        """
        given = options_of(QueueOptions, options)
        return self._declaring(subscription, topics, start, given, "handler")

    def _declaring(
        self,
        subscription: str,
        topics: Iterable[str],
        start: str | int,
        given: ConsumerOptions | QueueOptions,
        kind: str,
    ) -> Callable[[Function], Function]:
        if isinstance(topics, str):
            raise InvalidArgument("topics is a single string", hint="give a list of topics")
        if subscription in self.consumers:
            raise InvalidArgument(
                f"the subscription {subscription!r} is declared twice",
                hint="each has one handler; give a second reader a subscription of its own",
            )

        def declare(function: Function) -> Function:
            handled: dict[str, Any] = {kind: function}
            declared = Declared(subscription, tuple(topics), start, replace(given, **handled))
            self._make("postgresql://nowhere/none", declared)  # refuses wrong options now
            self.consumers[subscription] = declared
            return function

        return declare

    def workers(
        self,
        around: Callable[[str, Function], Function] | None = None,
        *,
        process: int | None = None,
    ) -> list[Worker]:
        """A worker for each consumer.  No worker has a connection yet.

        ``around`` is given the name of each worker and its handler, and returns what is called
        instead of it.  ``process`` is the number of this process, if there are several.
        """
        if not self.consumers:
            raise InvalidArgument(
                "the application declares no consumer", hint="write one below @app.consumer(...)"
            )
        url = self.url or config.database_url()
        found: list[Worker] = []
        for subscription, declared in self.consumers.items():
            name = f"consumer:{subscription}"
            if process is not None:
                declared = declared.of_process(process)
            if around is not None:
                declared = declared.around(functools.partial(around, name))
            kind = QueueWorker if isinstance(declared.options, QueueOptions) else ConsumerWorker
            found.append(kind(name, functools.partial(self._make, url, declared)))
        return found

    def prepare(self) -> None:
        """Make the missing subscriptions, and refuse consumers that cannot work."""
        with database.connect(self.url) as connection:
            migrate.require_usable(connection)
            for declared in self.consumers.values():
                is_queue = isinstance(declared.options, QueueOptions)
                subscribe: Any = queue.subscribe if is_queue else stream.subscribe
                if declared.topics:
                    subscribe(
                        connection, declared.subscription, declared.topics, start=declared.start
                    )
                elif not subscriptions.lag(connection, declared.subscription):
                    raise SubscriptionNotFound(
                        f"there is no subscription {declared.subscription!r}",
                        hint="name its topics: @app.consumer(..., topics=[...])",
                    )

    def _make(self, url: str, declared: Declared) -> Consumer | QueueConsumer:
        options = declared.options
        if isinstance(options, QueueOptions):
            return QueueConsumer.of(url, declared.subscription, options)
        if options.archive is None:
            options = replace(options, archive=self.archive)
        return Consumer.of(url, declared.subscription, options)
