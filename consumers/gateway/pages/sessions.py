"""Who has signed in to the page.  Nothing is stored: a session is a signed text in a cookie."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass

#: A session ends after a working day.
SESSION_SECONDS = 8 * 3_600
COOKIE = "penstock_page"
LONGEST_NAME = 60
_LONGEST_COOKIE = 1_024


@dataclass(frozen=True, slots=True)
class Session:
    """Who has signed in, by the name that was given, and the token that each of its forms has."""

    person: str
    token: str


class Sessions:
    """Makes sessions and reads them; another key ends them all."""

    def __init__(self, key: str, clock: Callable[[], float]) -> None:
        self._key = key.encode()
        self._clock = clock

    def is_key(self, shown: str) -> bool:
        """Whether this is the key, in the same time for each wrong one."""
        return hmac.compare_digest(self._mac("key", shown.encode()), self._mac("key", self._key))

    def begin(self, person: str) -> str:
        """The cookie of a new session."""
        until = int(self._clock()) + SESSION_SECONDS
        told = json.dumps([person, until, secrets.token_hex(16)]).encode()
        return f"{_text(told)}.{_text(self._mac('session', told))}"

    def read(self, cookie: str) -> Session | None:
        """The session of a cookie; None when it is not ours or is over."""
        if len(cookie) > _LONGEST_COOKIE:
            return None
        told, _, mac = cookie.partition(".")
        try:
            content, shown = _bytes(told), _bytes(mac)
        except ValueError:
            return None
        if not hmac.compare_digest(shown, self._mac("session", content)):
            return None
        person, until, _ = json.loads(content)
        if until <= self._clock():
            return None
        return Session(person, _text(self._mac("form", content)))

    def _mac(self, what: str, content: bytes) -> bytes:
        return hmac.new(
            self._key, f"penstock.page.{what}:".encode() + content, hashlib.sha256
        ).digest()


def is_token(session: Session, shown: str) -> bool:
    """Whether a form has the token of this session."""
    return hmac.compare_digest(shown.encode(), session.token.encode())


def _text(content: bytes) -> str:
    return urlsafe_b64encode(content).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
