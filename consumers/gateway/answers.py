"""What the gateway answers: a status, headers and a body; and which status an error has."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock import database
from penstock.errors import (
    AccountNotFound,
    ActsForNobody,
    AlreadyExists,
    BackPressure,
    BackwardCommit,
    BelowLowSequence,
    BeyondHighWatermark,
    BookmarkNotFound,
    DuplicateSession,
    EpochError,
    InUse,
    LogBehind,
    NamespaceNotFound,
    NotRedriven,
    PayloadTooLarge,
    PenstockError,
    PermissionDenied,
    QuotaExceeded,
    StaleLease,
    StaleReceipt,
    SubscriptionNotFound,
    TopicNotFound,
    UnknownConsumer,
    UsageError,
    WrongMode,
)

logger = logging.getLogger("penstock.gateway")

JSON = "application/json"
_NOT_FOUND = (
    TopicNotFound, SubscriptionNotFound, NamespaceNotFound, BookmarkNotFound, PermissionDenied,
)  # fmt: skip
_CONFLICT = (
    AlreadyExists, BackwardCommit, BeyondHighWatermark, DuplicateSession, InUse, LogBehind,
    NotRedriven, StaleLease, StaleReceipt, UnknownConsumer, WrongMode,
)  # fmt: skip
#: The database's text of these names what is there and belongs to others, or the gateway's login.
_UNTOLD: tuple[tuple[Any, int, str], ...] = (
    (_NOT_FOUND, 404, "there is no such thing, or this account has no right to it"),
    (InUse, 409, "something still uses it: a subscription, a legal hold or a relay"),
    (ActsForNobody, 503, "the gateway cannot serve accounts now: ask who runs it"),
)
#: When a caller may come again, in seconds.
_SOON = {"Retry-After": "1"}


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    """A whole answer."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        status: int,
        message: str = "",
        headers: Mapping[str, str] | None = None,
        *,
        error: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        #: The name of Penstock's error, for clients that have it too.
        self.error = error
        self.message = message
        self.headers = dict(headers or {})


def as_json(status: int, value: Any, headers: Mapping[str, str] | None = None) -> GatewayAnswer:
    """An answer with a value as JSON."""
    return GatewayAnswer(status, msgspec.json.encode(value), JSON, headers or {})


def refused(error: Refused, operation: str, names: Mapping[str, str]) -> GatewayAnswer:
    """The answer to a request that is refused.  401 has no body: it tells nobody why."""
    if error.status == 401:  # noqa: PLR2004 - the one that is special
        return GatewayAnswer(401, headers=error.headers | {"WWW-Authenticate": "Key, Signature"})
    reason = {404: "NotFound", 409: "Conflict"}.get(error.status, "Error")
    told = {"reason": reason, "operation": operation, "message": error.message} | dict(names)
    if error.error:
        told["error"] = error.error
    return as_json(error.status, told, error.headers)


def as_refused(error: Exception) -> Refused | None:
    """The refusal that an error of the log, or of its database, stands for; None for a bug."""
    if isinstance(error, AccountNotFound):
        return Refused(401)
    for kind, status, told in _UNTOLD:
        if isinstance(error, kind):
            if status == 503:  # noqa: PLR2004 - only this one is for who runs the gateway
                logger.error("the gateway's login cannot act for accounts", exc_info=error)
            return Refused(status, told)
    if isinstance(error, (BackPressure, QuotaExceeded)):
        seconds = error.retry_seconds if isinstance(error, QuotaExceeded) else 1
        again = {"Retry-After": str(seconds)}
        return Refused(429, str(error), again, error=type(error).__name__)
    if isinstance(error, PenstockError) and not database.is_passing(error):
        return Refused(_status(error), str(error), error=type(error).__name__)
    return _of_driver(error)


def _of_driver(error: Exception) -> Refused | None:
    if database.is_passing(error):
        return Refused(503, "the database cannot do this now: try again", _SOON)
    if any(kind.__name__ == "DataError" for kind in type(error).__mro__):
        # So PEP 249 calls what a driver, or the database, cannot take as a value. A text with NUL
        # is one, and which texts of a call may have none differs between the engines.
        return Refused(400, "a value of this call cannot be stored: it has NUL, or is too large")
    return None


def _status(error: PenstockError) -> int:
    if isinstance(error, _CONFLICT):
        return 409
    if isinstance(error, PayloadTooLarge):
        return 413
    if isinstance(error, (BelowLowSequence, EpochError)):
        return 410
    return 400 if isinstance(error, UsageError) else 503
