"""How a webhook's calls prove who sends them: signatures, tokens, OAuth2 client credentials."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from urllib.parse import quote_plus, urlencode, urlsplit

from ops.sinks.base import SinkMisconfigured, SinkUnavailable
from ops.sinks.guarded_http import Caller, Callers, HttpAnswer, HttpPlace, Wall
from ops.sinks.logins import secret
from penstock.errors import ConfigurationError

_PREFIX = "whsec_"
_KEY_BYTES = range(24, 65)
_EARLY_SECONDS = 30
_DEFAULT_SECONDS = 300
_OK, _BAD_REQUEST, _UNAUTHORIZED = 200, 400, 401


def keys(text: str, name: str) -> list[bytes]:
    """The keys of `whsec_...` secrets.  Two are given while the old one is being replaced."""
    found = []
    for word in text.split():
        try:
            key = base64.b64decode(word.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) not in _KEY_BYTES:
            raise SinkMisconfigured(
                f"{name} is not a secret of Standard Webhooks",
                hint="write whsec_ and 24 to 64 random bytes in base64, such as "
                '"whsec_$(openssl rand -base64 32)"',
            )
        found.append(key)
    return found


def signatures(signing: Sequence[bytes], call_id: str, seconds: int, body: bytes) -> str:
    """The header `webhook-signature`: one signature for each key."""
    content = f"{call_id}.{seconds}.".encode() + body
    made = (base64.b64encode(hmac.digest(key, content, hashlib.sha256)) for key in signing)
    return " ".join(f"v1,{each.decode()}" for each in made)


class Login:
    """The secrets of one webhook, as the environment has them at each call.

    ``prefix`` begins the names of its variables.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        prefix: str,
        *,
        wall: Wall,
        seconds: float,
        tls: ssl.SSLContext | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.prefix = prefix
        self._environ = environ
        self._wall = wall
        self._seconds = seconds
        self._tls = tls
        self._clock = clock
        #: Told when a token has come, or did not come.
        self._changed = threading.Condition()
        self._asks = False
        self._token = ""
        self._until = 0.0

    def signing_keys(self) -> list[bytes]:
        """The keys that calls are signed with; none when no secret is given."""
        name = f"{self.prefix}_SECRET"
        return keys(secret(self._environ, name), name)

    def authorization(self, deadline: float, callers: Callers) -> str:
        """The header `Authorization`: a fixed token, or one of the token endpoint; else empty.

        One thread asks for a new token, and the others wait for it, each until its own call is
        over. When it did not come, the next one asks. Closing the callers and `wake` end the wait.
        """
        fixed = secret(self._environ, f"{self.prefix}_TOKEN")
        if fixed:
            return f"Bearer {_visible(fixed, f'{self.prefix}_TOKEN')}"
        if not self._environ.get(f"{self.prefix}_OAUTH_URL"):
            return ""
        with self._changed:
            while self._asks and not self._is_fresh():
                self._wait(deadline, callers)
            if self._is_fresh():
                return f"Bearer {self._token}"
            self._asks = True
        try:
            token, seconds = self._granted(deadline, callers)
            with self._changed:
                self._token, self._until = token, self._clock() + seconds
            return f"Bearer {token}"
        finally:
            with self._changed:
                self._asks = False
                self._changed.notify_all()

    def wake(self) -> None:
        """Let those that wait for a token see that their callers were closed."""
        with self._changed:
            self._changed.notify_all()

    def renews(self, used: str) -> bool:
        """Forget a token of the token endpoint that was not accepted.  False when it is fixed."""
        with self._changed:
            if not self._token:
                return False
            if used == f"Bearer {self._token}":
                self._token = ""
            return True

    def _is_fresh(self) -> bool:
        return bool(self._token) and self._clock() < self._until

    def _wait(self, deadline: float, callers: Callers) -> None:
        left = deadline - time.monotonic()
        callers.require_open()
        if left <= 0 or not self._changed.wait(left):
            raise SinkUnavailable("the token endpoint did not answer in time")

    def without_secrets(self, text: str) -> str:
        """A text of the receiver.  It may repeat what it was sent, as JSON or an address does."""
        for each in self._secrets():
            text = re.sub("".join(map(_spelled, each)), "...", text)
        return text

    def _secrets(self) -> Iterator[str]:
        for name in ("SECRET", "TOKEN", "OAUTH_CLIENT_SECRET"):
            yield from secret(self._environ, f"{self.prefix}_{name}").split()
        if self._token:
            yield self._token

    def _granted(self, deadline: float, callers: Callers) -> tuple[str, float]:
        """A new token, and for how many seconds it is used."""
        name = f"{self.prefix}_OAUTH_CLIENT_SECRET"
        client = self._environ.get(f"{self.prefix}_OAUTH_CLIENT_ID", "")
        password = secret(self._environ, name)
        if not client or not password:
            raise SinkMisconfigured(
                f"{self.prefix}_OAUTH_URL is set without a client",
                hint=f"set {self.prefix}_OAUTH_CLIENT_ID and {name} (or {name}_FILE)",
            )
        login = f"{quote_plus(client)}:{quote_plus(password)}".encode()
        form = {"grant_type": "client_credentials"}
        for field in ("scope", "audience"):
            value = self._environ.get(f"{self.prefix}_OAUTH_{field.upper()}")
            if value:
                form[field] = value
        headers = {
            "Authorization": f"Basic {base64.b64encode(login).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        caller = callers.add(Caller(self._endpoint(), self._wall, self._seconds, self._tls))
        try:
            answer = caller.post(headers, urlencode(form).encode(), deadline)
            return _token_of(answer, self.prefix)
        finally:
            callers.remove(caller)
            caller.close()

    def _endpoint(self) -> HttpPlace:
        variable = f"{self.prefix}_OAUTH_URL"
        try:
            return HttpPlace.of(urlsplit(self._environ[variable]), self._wall, variable)
        except (KeyError, ValueError) as error:
            raise SinkMisconfigured(
                f"{variable} is no address any more", hint="write https://HOST/PATH"
            ) from error
        except ConfigurationError as error:
            raise SinkMisconfigured(error.message, hint=error.hint) from error


def _token_of(answer: HttpAnswer, prefix: str) -> tuple[str, float]:
    if answer.status in {_BAD_REQUEST, _UNAUTHORIZED}:
        raise SinkMisconfigured(
            f"the token endpoint refused the client ({answer.status})",
            hint=f"check {prefix}_OAUTH_CLIENT_ID, _OAUTH_CLIENT_SECRET and _OAUTH_SCOPE",
        )
    try:
        found = json.loads(answer.body) if answer.status == _OK else {}
        token, seconds = found["access_token"], float(found.get("expires_in") or _DEFAULT_SECONDS)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise SinkUnavailable(
            f"the token endpoint answered {answer.status} without a token"
        ) from None
    return _visible(str(token), "the token endpoint's token"), max(1.0, seconds - _EARLY_SECONDS)


def _spelled(sign: str) -> str:
    """Any form of a sign: itself, behind a backslash, or as its number."""
    return rf"(?:\\?{re.escape(sign)}|(?i:\\u{ord(sign):04x}|%{ord(sign):02x}))"


def _visible(token: str, what: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise SinkMisconfigured(f"{what} has characters that a token cannot have")
    return token
