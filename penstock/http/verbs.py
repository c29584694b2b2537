"""The calls of the gateway: what is sent, what an answer means, and what may be sent again.

Nothing here opens a connection: the synchronous and the asynchronous client share it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, TypeVar

from penstock import errors
from penstock.errors import (
    BackPressure,
    BelowLowSequence,
    GatewayUnavailable,
    InvalidArgument,
    PayloadTooLarge,
    PenstockError,
    PermissionDenied,
    StaleLease,
    SubscriptionNotFound,
    UsageError,
)

T = TypeVar("T")

JSON = "application/json"
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer of the gateway."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    def json(self) -> Any:
        """The body as JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise GatewayUnavailable(
                "the answer is not that of a gateway", hint="check the address"
            ) from None


@dataclass(frozen=True, slots=True)
class HttpVerb(Generic[T]):
    """A call, and how its answer is read."""

    method: str
    path: str
    read: Callable[[HttpReply], T]
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Twice does the same as once: it is sent again when its answer was lost.
    is_repeatable: bool = False
    #: The answer may take so much longer.
    wait_seconds: float = 0.0
    #: What is missing when the answer is 404.
    missing: type[PenstockError] = SubscriptionNotFound


class AnswerLost(Exception):
    """The connection failed.  ``was_sent``: the gateway may have got the request."""

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_sent = was_sent


class Attempts:
    """Whether a call is sent again, and after how long."""

    def __init__(self, verb: HttpVerb[Any], most: int, name: str) -> None:
        self._verb = verb
        self._left = most - 1
        self._name = name
        self._pause = _FIRST_PAUSE_SECONDS

    def lost(self, error: AnswerLost) -> float:
        """How long to wait before the next attempt; raises when there is none."""
        if self._left > 0 and (self._verb.is_repeatable or not error.was_sent):
            return self._next()
        what = f"the gateway at {self._name} {error.reason}"
        if error.was_sent and not self._verb.is_repeatable:
            raise GatewayUnavailable(
                f"{what}, and the call may be done or not", hint="look before you call again"
            ) from error
        raise GatewayUnavailable(what, hint="try again later, or check the address") from error

    def answered(self, reply: HttpReply) -> float | None:
        """How long to wait before the next attempt; None: it is done.  Raises a refusal."""
        if reply.status < 300:  # noqa: PLR2004 - all of them are good
            return None
        # 429 comes before anything is done. After 503 a publish may be there.
        again = reply.status == 429 or (reply.status >= 500 and self._verb.is_repeatable)  # noqa: PLR2004
        if not again or self._left <= 0:
            refuse(reply, self._verb.missing)
        wait = self._next()
        after = reply.headers.get("retry-after", "")
        return max(wait, min(float(after), _LONGEST_PAUSE_SECONDS)) if after.isdecimal() else wait

    def _next(self) -> float:
        self._left -= 1
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        return pause


_BY_STATUS: dict[int, tuple[type[PenstockError], str]] = {
    403: (PermissionDenied, "make a key with the level that is named"),
    413: (PayloadTooLarge, "send less at once"),
    410: (BelowLowSequence, "begin at a later sequence"),
    429: (BackPressure, "send less at a time, or later"),
}


def refuse(reply: HttpReply, missing: type[PenstockError] = SubscriptionNotFound) -> NoReturn:
    """Raise the error that an answer stands for."""
    if reply.status == 401:  # noqa: PLR2004 - it has no body
        raise PermissionDenied(
            "the gateway does not take this key", hint="check key, account and queue of the key"
        )
    told: dict[str, Any] = {}
    with suppress(ValueError, TypeError):
        told = dict(json.loads(reply.body))
    text = str(told.get("message") or f"the gateway has answered {reply.status}")
    kind = _named(told.get("error"))
    if kind is not None:
        raise kind(text)
    if reply.status == 404:  # noqa: PLR2004
        raise missing(text, hint="check the name, and that it belongs to the account")
    if reply.status in _BY_STATUS:
        found, hint = _BY_STATUS[reply.status]
        raise found(text, hint=hint)
    if reply.status >= 500:  # noqa: PLR2004
        raise GatewayUnavailable(text, hint="look before you call again: it may be done")
    raise InvalidArgument(text)


def refuse_stream(status: int, missing: type[PenstockError]) -> NoReturn:
    """Raise the error with which a stream has ended."""
    if status == 408:  # noqa: PLR2004
        raise StaleLease(
            "the gateway took the partitions back: nothing was committed for too long",
            hint="listen again; what was not committed comes again",
        )
    refuse(HttpReply(status, {}), missing)


def _named(name: object) -> type[PenstockError] | None:
    """An error of the package by its name; one that only the caller's mistake can cause."""
    found = getattr(errors, name, None) if isinstance(name, str) else None
    if isinstance(found, type) and issubclass(found, PenstockError):
        # Only what is made from a text alone.
        return found if found not in {PenstockError, UsageError} else None
    return None


def nothing(_: HttpReply) -> None:
    """The answer says no more than that it is done."""


def as_body(value: Any) -> bytes:
    """A value as the body of a request."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
