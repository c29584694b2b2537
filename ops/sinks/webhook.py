"""HTTP webhooks: every event at least once, signed, in the order of its key.

A receiver tells nobody what it holds, so a block whose relay was killed is sent again by its
successor: what is doubled lies in that block and carries the same `webhook-id`, by which the
receiver drops it. Within a process nothing that the receiver has confirmed is sent again.

The receiver's address stands in the sink's address as it is; what comes after `#` are options of
the sink, because the query belongs to the receiver. The scheme is `webhook+https`: an `https`
address alone could as well be that of a queue or of another broker.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import SplitResult
from uuid import UUID

from ops.sinks.base import (
    EventRefused,
    RelayBlock,
    SinkLease,
    SinkMisconfigured,
    SinkUnavailable,
    encoded,
)
from ops.sinks.cloudevents import BATCH_CONTENT_TYPE, CONTENT_TYPE, to_http, to_json
from ops.sinks.guarded_http import (
    Caller,
    Callers,
    HttpAnswer,
    HttpPlace,
    Wall,
    allowed_addresses,
)
from ops.sinks.lanes import Lanes, by_key
from ops.sinks.logins import tls
from ops.sinks.options import options_of
from ops.sinks.routing import BATCH, BINARY, STRUCTURED
from ops.sinks.sent import SentEvents, left
from ops.sinks.webhook_answers import UNAUTHORIZED, failure
from ops.sinks.webhook_login import Login, signatures
from penstock.errors import ConfigurationError
from penstock.log.restores import Seen
from penstock.records import Event

PREFIX = "PENSTOCK_WEBHOOK"

_BATCH_BYTES = 1 << 20
_MOST_EVENTS = 10_000
_OPTIONS = ("batch", "concurrency", "envelope", "login", "seconds", "signature")
_USUAL_BATCH = 100


def open_sink(parts: SplitResult, environ: Mapping[str, str], beside: str) -> WebhookSink:
    """The sink of `webhook+https://HOST/PATH?QUERY#OPTIONS`.

    With ``beside`` the path goes on with that name.
    """
    options = options_of(parts._replace(query=parts.fragment), _OPTIONS, "webhook")
    if beside:
        parts = parts._replace(path=f"{parts.path.rstrip('/')}/{beside}")
    if options.get("signature", "none") != "none":
        raise ConfigurationError("the webhook address has signature=, which can only be none")
    name = options.get("login", "")
    if name and not (name.isascii() and name.isidentifier()):
        raise ConfigurationError("the webhook address has login=, which is no part of a name")
    wall = Wall.of(environ)
    return WebhookSink(
        HttpPlace.of(parts, wall, "the webhook address"),
        environ=environ,
        wall=wall,
        prefix=f"{PREFIX}_{name.upper()}" if name else PREFIX,
        batch=_batch(options),
        binary=options.get("envelope") == BINARY,
        concurrency=_count(options, "concurrency", 256),
        seconds=_count(options, "seconds", 600, preset=30),
        signed="signature" not in options,
    )


def _batch(options: Mapping[str, str]) -> int | None:
    """How many events a call may have; None: a call has one, and no list around it."""
    envelope = options.get("envelope", BATCH if "batch" in options else STRUCTURED)
    if envelope == BATCH:
        return _count(options, "batch", 1_000, preset=_USUAL_BATCH)
    if "batch" in options:
        raise ConfigurationError(
            f"the webhook address has batch= and envelope={envelope}, which sends single events",
            hint="leave one of them out",
        )
    return None


def _count(options: Mapping[str, str], name: str, most: int, preset: int = 1) -> int:
    text = options.get(name, str(preset))
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= most):
        raise ConfigurationError(
            f"the webhook address has {name}=, which is no number from 1 to {most}"
        )
    return int(text)


class WebhookSink:
    """Calls one address for each event, or for each batch of events."""

    #: Also the relay of a queue can send to it.
    any_order = True

    name = "webhook"
    max_block_bytes = 8 << 20

    def __init__(
        self,
        place: HttpPlace,
        *,
        environ: Mapping[str, str],
        wall: Wall,
        prefix: str = PREFIX,
        batch: int | None = None,
        binary: bool = False,
        concurrency: int = 1,
        seconds: float = 30,
        signed: bool = True,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Make a sink.  Without ``batch`` a call has one event, else up to so many.

        With ``binary`` the attributes of that event are headers, and the body is its payload.

        ``concurrency`` calls of a partition are under way at a time, one for each key.
        """
        self.place = place
        self.batch = batch
        self.binary = binary
        self.concurrency = concurrency
        self.signed = signed
        self.now = now
        self.sent = SentEvents()
        # A killed relay doubles at most a block, so it is small, but of enough calls in a row that
        # the pause after it costs little.
        self.max_block_events = min(_MOST_EVENTS, max(100, 25 * concurrency * (batch or 1)))
        self._wall = wall
        self._seconds = seconds
        is_https = place.scheme == "https" or f"{prefix}_OAUTH_URL" in environ
        self._tls = tls(environ, PREFIX) if is_https else None
        self.login = Login(environ, prefix, wall=wall, seconds=seconds, tls=self._tls)

    def preflight(self, topic: str, partitions: int) -> None:
        """Check the host's addresses and the login, without a call to the receiver."""
        if self.signed and not self.login.signing_keys():
            raise SinkMisconfigured(
                f"{self.login.prefix}_SECRET is not set, so the calls would not be signed",
                hint=f'set it, or {self.login.prefix}_SECRET_FILE: "whsec_$(openssl rand -base64 '
                '32)"; or add #signature=none to the address',
            )
        try:
            allowed_addresses(self.place, self._wall, self._seconds)
        except OSError as error:
            raise SinkUnavailable(f"{self.place.host} cannot be resolved: {error}") from error
        self.login.authorization(self.deadline(), Callers())

    def open(self, lease: SinkLease) -> WebhookChannel:
        """A channel of connections of its own, which are made when they are needed."""
        return WebhookChannel(self)

    def close(self) -> None:
        """Channels hold the connections."""

    def deadline(self) -> float:
        """When a call that begins now has to be over: login and answer together."""
        return time.monotonic() + self._seconds

    def caller(self) -> Caller:
        """A connection for one call at a time."""
        return Caller(self.place, self._wall, self._seconds, self._tls)


class WebhookChannel:
    """The connections over which the events of one partition go."""

    def __init__(self, sink: WebhookSink) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._idle: list[Caller] = []
        self._callers = Callers()
        self._workers: ThreadPoolExecutor | None = None

    def seen(self) -> Seen | None:
        """A receiver cannot be asked."""
        return None

    def send_block(self, block: RelayBlock) -> None:
        """Call for every event of the block that this process has not sent yet."""
        sink = self._sink
        confirmed = sink.sent.of(block)
        signing = sink.login.signing_keys() if sink.signed else []

        def call(events: Sequence[Event]) -> None:
            for piece, body in self._bodies(events):
                self._call(piece, body, signing, confirmed)

        lanes = Lanes(
            left(block, confirmed),
            by_key if sink.concurrency > 1 else _together,
            workers=sink.concurrency,
            chunk=sink.batch or 1,
        )
        lanes.run(call, self._executor())

    def close(self) -> None:
        """Close the connections, also those on which another thread waits for an answer."""
        self.abort()
        if self._workers is not None:
            self._workers.shutdown(cancel_futures=True)

    def abort(self) -> None:
        """End the calls that are under way: while they resolve, connect, log in, send or wait."""
        self._callers.close()
        self._sink.login.wake()

    def _executor(self) -> ThreadPoolExecutor:
        self._callers.require_open()
        if self._workers is None:
            self._workers = ThreadPoolExecutor(self._sink.concurrency, "penstock-webhook")
        return self._workers

    def _bodies(self, events: Sequence[Event]) -> Iterator[tuple[Sequence[Event], bytes]]:
        """The events of each call, and what it sends.  A batch of too many bytes is cut."""
        if self._sink.batch is None:
            body = _payload if self._sink.binary else to_json
            for event, line in zip(events, encoded(events, body), strict=True):
                yield [event], line
            return
        piece: list[Event] = []
        lines: list[bytes] = []
        size = 0
        for event, line in zip(events, encoded(events, to_json), strict=True):
            if piece and size + len(line) > _BATCH_BYTES:
                yield piece, b"[" + b",".join(lines) + b"]"
                piece, lines, size = [], [], 0
            piece.append(event)
            lines.append(line)
            size += len(line)
        yield piece, b"[" + b",".join(lines) + b"]"

    def _call(
        self,
        events: Sequence[Event],
        body: bytes,
        signing: Sequence[bytes],
        confirmed: set[UUID],
    ) -> None:
        sink = self._sink
        seconds = int(sink.now())
        call_id = _call_id([event.event_id for event in events], batch=sink.batch is not None)
        headers = {
            **self._form(events[0]),
            "User-Agent": "penstock",
            "webhook-id": call_id,
            "webhook-timestamp": str(seconds),
        }
        if signing:
            headers["webhook-signature"] = signatures(signing, call_id, seconds, body)
        answer = self._answer(headers, body)
        error = failure(
            answer, events[0].sequence, sink.place.host, sink.login.without_secrets, sink.now()
        )
        if error is None:
            confirmed.update(event.event_id for event in events)
        elif isinstance(error, EventRefused) and len(events) > 1:
            for event in events:  # each alone shows which of them is refused
                self._call([event], b"[" + to_json(event) + b"]", signing, confirmed)
        else:
            raise error

    def _form(self, event: Event) -> dict[str, str]:
        """The headers that say what a call has: in the binary form they are the attributes."""
        if self._sink.binary:
            return next(encoded([event], to_http))
        return {"Content-Type": CONTENT_TYPE if self._sink.batch is None else BATCH_CONTENT_TYPE}

    def _answer(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        login, deadline = self._sink.login, self._sink.deadline()
        caller = self._caller()
        authorization = login.authorization(deadline, self._callers)
        answer = caller.post({**headers, **_present(authorization)}, body, deadline)
        if answer.status == UNAUTHORIZED and login.renews(authorization):
            renewed = login.authorization(deadline, self._callers)
            answer = caller.post({**headers, **_present(renewed)}, body, deadline)
        with self._lock:
            self._idle.append(caller)
        return answer

    def _caller(self) -> Caller:
        with self._lock:
            if self._idle and not self._callers.closed:
                return self._idle.pop()
        return self._callers.add(self._sink.caller())


def _payload(event: Event) -> bytes:
    return event.payload


def _together(_: Event) -> int:
    """One call at a time: all events are in order, also those of different keys."""
    return 0


def _present(authorization: str) -> dict[str, str]:
    return {"Authorization": authorization} if authorization else {}


def _call_id(ids: Sequence[UUID], *, batch: bool) -> str:
    """The same events have the same id at every attempt, whatever was cut before them."""
    if not batch:
        return str(ids[0])
    return "batch_" + hashlib.sha256(b"".join(each.bytes for each in ids)).hexdigest()[:32]
