"""The synchronous client of the gateway, over http.client."""

from __future__ import annotations

import http.client
import select
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, TypeVar
from uuid import UUID

from penstock.http import calls
from penstock.http.address import GatewayAddress
from penstock.http.calls import NewMessage
from penstock.http.heard import HeardEvent, LineReader, ServerSentEvent, event_of, heard
from penstock.http.streams import SILENCE_SECONDS, Resumed, StreamRefused
from penstock.http.verbs import AnswerLost, Attempts, HttpReply, HttpVerb
from penstock.records import Event, PartitionRange, Published
from penstock.subscriptions.dead_letters import DeadLetter
from penstock.subscriptions.queue import Delivery, QueueStatistics, Receipt

T = TypeVar("T")

#: An unused connection is used again for so long; the gateway closes it after 120 seconds.
_IDLE_SECONDS = 60.0
_MOST_IDLE = 8


class GatewayClient:
    """Calls a gateway for an account; any number of threads may share it.

    ``url`` is ``https://HOST/ACCOUNT`` and ``key`` is KEY_ID.SECRET; without them the environment
    says both: PENSTOCK_GATEWAY_URL and PENSTOCK_GATEWAY_KEY.  ``timeout`` is how long an answer may
    take, in seconds.  ``attempts`` is how often a call is sent that can be sent again.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout: float = 30.0,
        attempts: int = 5,
    ) -> None:
        self.address = GatewayAddress.of(url, key)
        self._timeout = timeout
        self._attempts = max(1, attempts)
        self._tls = ssl.create_default_context() if self.address.is_secure else None
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"GatewayClient({self.address.name}, account {self.address.account})"

    def __enter__(self) -> GatewayClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that are not in use."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def publish(
        self, topic: str, payload: bytes, *, resend: bool = True, **options: Any
    ) -> Published:
        """Publish one event; ``options`` are the other fields of a :class:`NewMessage`.

        It carries a dedup key, so that it is sent again when its answer was lost, and is there
        once.  Without ``resend`` it has none: it is faster, because the gateway commits it together
        with others, and after a lost answer it may be there or not (GatewayUnavailable).

        With ``headers`` it goes as a batch, which does not tell duplicates: then ``duplicate`` is
        False also for an event that was there by its ``dedup_key``; its id is the first one's.
        """
        return self.call(calls.publish(topic, NewMessage(payload, **options), resend=resend))

    def publish_batch(
        self, topic: str, messages: Iterable[NewMessage], *, resend: bool = True
    ) -> list[UUID]:
        """Publish many events of one topic: all or none."""
        return self.call(calls.publish_batch(topic, messages, resend=resend))

    def fetch(
        self, topic: str, partition: int = 0, sequence: int = 1, max_events: int = 100
    ) -> list[Event]:
        """Events of a partition from a sequence on."""
        return self.call(calls.fetch(topic, partition, sequence, max_events))

    def partitions(self, topic: str) -> list[PartitionRange]:
        """Which sequences of each partition can be fetched."""
        return self.call(calls.partitions(topic))

    def topics(self) -> list[str]:
        """The addresses of the account's topics."""
        found, after = self.call(calls.topics())
        while after is not None:
            more, after = self.call(calls.topics(after))
            found += more
        return found

    def create_topic(self, topic: str, partitions: int = 1) -> bool:
        """Make a topic; False when it is there already."""
        return self.call(calls.create_topic(topic, partitions))

    def create_queue(self, queue: str) -> bool:
        """Make a queue; False when it is there already."""
        return self.call(calls.create_queue(queue))

    def create_subscription(
        self, subscription: str, topics: Sequence[str], start: str = "earliest"
    ) -> bool:
        """Make a subscription, or add topics to it; False when it has all of them."""
        return self.call(calls.create_subscription(subscription, topics, start))

    def receive(
        self,
        queue: str,
        max_events: int = 1,
        *,
        visibility_seconds: float | None = None,
        wait_seconds: float = 0.0,
    ) -> list[Delivery]:
        """Receive messages; with ``wait_seconds`` (at most 30) wait for the first one."""
        return self.call(calls.receive(queue, max_events, visibility_seconds, wait_seconds))

    def acknowledge(
        self, queue: str, receipts: Iterable[Receipt | str], *, partly: bool = False
    ) -> list[bool]:
        """Finish messages: all or none, or with ``partly`` those whose receipt is good."""
        return self.call(calls.settle("acknowledge", queue, receipts, partly))

    def release(
        self, queue: str, receipts: Iterable[Receipt | str], *, partly: bool = False
    ) -> list[bool]:
        """Put messages back that nobody began."""
        return self.call(calls.settle("release", queue, receipts, partly))

    def reject(
        self,
        queue: str,
        receipts: Iterable[Receipt | str],
        reason: str = "",
        *,
        delay_seconds: float | None = None,
        partly: bool = False,
    ) -> list[bool]:
        """Record that messages have failed."""
        more = {"reason": reason, "delay_seconds": delay_seconds}
        return self.call(calls.settle("reject", queue, receipts, partly, **more))

    def extend(
        self, queue: str, receipts: Iterable[Receipt | str], visibility_seconds: float
    ) -> list[Receipt]:
        """Hide messages for longer, from now on.  Returns the new receipts."""
        return self.call(calls.extend(queue, receipts, visibility_seconds))

    def counts(self, queue: str) -> QueueStatistics:
        """How many messages a queue has, by state."""
        return self.call(calls.counts(queue))

    def dead_letters(self, queue: str, **filters: Any) -> list[DeadLetter]:
        """The dead letters of a queue, newest first.

        Filters: ``max_rows``, ``before_id``, ``key``, ``type``, ``state``.
        """
        return self.call(calls.dead_letters(queue, filters))

    def redrive(self, queue: str, letters: Iterable[int] | None = None) -> int:
        """Make dead letters deliverable again, all without ``letters``.  Returns how many."""
        return self.call(calls.redrive(queue, letters))

    def commit(self, subscription: str, events: Iterable[HeardEvent]) -> None:
        """These events are done, and all before them in their partitions."""
        self.call(calls.commit(subscription, events))

    def tail(
        self, topic: str, *, start: str = "latest", partition: int | None = None, after: str = ""
    ) -> Iterator[Event]:
        """Events of a topic as they come, each once and in order; it connects again by itself.

        ``after`` is a place, ``history.partition.sequence``, with more pairs of partition and
        sequence behind a ``-``.
        """
        resumed = Resumed(
            lambda last: calls.tail(topic, start, partition, last or after),
            self._attempts,
            self.address,
        )
        for each in self._resumed(resumed):
            yield event_of(each.data)

    def listen(
        self,
        subscription: str,
        *,
        max_uncommitted: int | None = None,
        commit_seconds: float | None = None,
    ) -> Iterator[HeardEvent]:
        """Events of a subscription as they come: `commit` each when it is done.

        What is not committed when the connection ends comes again.
        """
        resumed = Resumed(
            lambda _: calls.listen(subscription, max_uncommitted, commit_seconds),
            self._attempts,
            self.address,
        )
        for each in self._resumed(resumed):
            yield heard(each.data)

    def call(self, verb: HttpVerb[T]) -> T:
        """Make a call, again where that is safe."""
        attempts = Attempts(verb, self._attempts, self.address.name)
        while True:
            try:
                reply = self._exchange(verb)
            except AnswerLost as error:
                time.sleep(attempts.lost(error))
                continue
            wait = attempts.answered(reply)
            if wait is None:
                return verb.read(reply)
            time.sleep(wait)

    def _exchange(self, verb: HttpVerb[Any]) -> HttpReply:
        connection = self._taken()
        with _lost(connection):
            self._send(connection, verb, self._timeout + verb.wait_seconds)
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            reply = HttpReply(answer.status, headers, answer.read())
        self._put_back(connection)
        return reply

    def _send(
        self, connection: http.client.HTTPConnection, verb: HttpVerb[Any], seconds: float
    ) -> None:
        if connection.sock is None:
            connection.timeout = self._timeout
            try:
                connection.connect()
            except OSError as error:
                # Only the kind of the error: its text may name what it likes.
                raise AnswerLost(
                    f"cannot be reached ({type(error).__name__})", was_sent=False
                ) from None
        connection.sock.settimeout(seconds)
        headers = self.address.headers(verb.headers)
        connection.request(verb.method, self.address.base + verb.path, verb.body, headers)

    def _taken(self) -> http.client.HTTPConnection:
        with self._lock:
            while self._idle:
                since, connection = self._idle.pop()
                if time.monotonic() - since < _IDLE_SECONDS and not _is_ended(connection):
                    return connection
                connection.close()
        host, port = self.address.host, self.address.port
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, context=self._tls)
        return http.client.HTTPConnection(host, port)

    def _put_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if connection.sock is not None and len(self._idle) < _MOST_IDLE:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()

    def _resumed(self, resumed: Resumed) -> Iterator[ServerSentEvent]:
        while True:
            try:
                for each in self._stream(resumed.verb()):
                    if resumed.took(each):
                        yield each
            except AnswerLost as error:
                time.sleep(resumed.lost(error))
            except StreamRefused as error:
                time.sleep(resumed.refused(error))
            else:
                time.sleep(resumed.ended())

    def _stream(self, verb: HttpVerb[Any]) -> Iterator[ServerSentEvent]:
        """One stream, until it ends."""
        connection = self._taken()
        try:
            with _lost(connection):
                self._send(connection, verb, SILENCE_SECONDS)
                answer = connection.getresponse()
                if answer.status != 200:  # noqa: PLR2004
                    headers = {name.lower(): value for name, value in answer.getheaders()}
                    raise StreamRefused(HttpReply(answer.status, headers, answer.read()))
            lines = LineReader()
            while True:
                with _lost(connection):
                    line = answer.readline()
                if not line:
                    return
                each = lines.feed(line)
                if each is not None:
                    yield each
        finally:
            connection.close()


def _is_ended(connection: http.client.HTTPConnection) -> bool:
    """Whether the other side has closed it: between two calls there is nothing to read."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


@contextmanager
def _lost(connection: http.client.HTTPConnection) -> Iterator[None]:
    """What fails in the block has cut the connection, after the request was sent."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        with suppress(OSError):
            connection.close()
        raise AnswerLost(f"has cut the call ({type(error).__name__})", was_sent=True) from None
    except BaseException:
        with suppress(OSError):
            connection.close()
        raise
