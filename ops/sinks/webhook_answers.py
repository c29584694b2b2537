"""What the answer of a webhook's receiver means for the event and for the relay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from ops.sinks.base import EventRefused, SinkMisconfigured, SinkPaused, SinkUnavailable
from ops.sinks.guarded_http import HttpAnswer
from penstock.errors import SinkError

UNAUTHORIZED = HTTPStatus.UNAUTHORIZED

#: They say nothing about the event: for all of them a person has to change something.
_ABOUT_THE_SETUP = {
    HTTPStatus.UNAUTHORIZED: "check the secret, the token or the OAuth2 client",
    HTTPStatus.FORBIDDEN: "check the rights of the token or the OAuth2 client",
    HTTPStatus.NOT_FOUND: "check the path of the address",
    HTTPStatus.METHOD_NOT_ALLOWED: "check the path of the address: it takes no POST",
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED: "check the address: a proxy answers there",
    HTTPStatus.MISDIRECTED_REQUEST: "check the host of the address",
    HTTPStatus.PAYMENT_REQUIRED: "check the account at the receiver",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "check that the receiver takes CloudEvents in JSON",
    HTTPStatus.UPGRADE_REQUIRED: "check the address: the receiver wants another protocol",
    HTTPStatus.UNAVAILABLE_FOR_LEGAL_REASONS: "ask the receiver",
}
_LATER = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
_SUCCESS, _REDIRECT, _CLIENT = range(200, 300), range(300, 400), range(400, 500)
#: A day: a receiver that asks for more is asked again.
_LONGEST_WAIT = 86_400.0
_MOST_CHARACTERS = 200


def failure(
    answer: HttpAnswer, sequence: int, host: str, without_secrets: Callable[[str], str], now: float
) -> SinkError | None:
    """What an answer to the event of this sequence means.  None when it was taken."""
    status = answer.status
    if status in _SUCCESS:
        return None
    said = f"the webhook at {host} answered {_named(status)}{_body(answer, without_secrets)}"
    if status in _REDIRECT:
        return SinkMisconfigured(
            f"{said}, and redirects are not followed", hint="write the address that it leads to"
        )
    if status == HTTPStatus.GONE:
        return SinkPaused(said, hint="it wants no more events: `penstock subscription resume`")
    if status in _ABOUT_THE_SETUP:
        return SinkMisconfigured(said, hint=_ABOUT_THE_SETUP[HTTPStatus(status)])
    if status in _CLIENT and status not in _LATER:
        return EventRefused(sequence, said)
    return SinkUnavailable(said, retry_after=_retry_after(answer.headers, now))


def _named(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _body(answer: HttpAnswer, without_secrets: Callable[[str], str]) -> str:
    """The beginning of what it said, as one line.  It is cut after secrets were taken out."""
    text = without_secrets(answer.body.decode("utf-8", "replace"))
    line = "".join(each if each.isprintable() else " " for each in text)
    line = " ".join(line.split())[:_MOST_CHARACTERS]
    return f" ({line})" if line else ""


def _retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """After how many seconds it wants the next call: a number, or a date."""
    text = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
    text = text.strip()
    try:
        seconds = float(text) if text.isdecimal() else parsedate_to_datetime(text).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), _LONGEST_WAIT)
