"""CassieQ's own credentials, for its clients: only keys that the operator has listed take them.

    Authorization: Key SECRET
    Authorization: Signed SIGNATURE      with x-cassieq-request-time
    ?auth=LEVELS&sig=SIGNATURE[&st=TIME][&et=TIME][&q=QUEUE]

They are weak.  A signature is over neither the query nor the body, counts for a minute as often as
anybody sends it, and an address may last for ever.  None of them names its key.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl

from consumers.gateway.credentials.shown import (
    LEVELS,
    TOKEN,
    BadCredentials,
    ShownRequest,
    hmac_sha256,
    is_same,
)

REQUEST_TIME = "x-cassieq-request-time"
#: How far the time of a signed request may be from ours.
SKEW_SECONDS = 60
_NAMES = frozenset({"auth", "sig", "st", "et", "q"})
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_SIGNATURE = re.compile(r"[A-Za-z0-9_-]{43}=?", re.ASCII)


@dataclass(frozen=True, slots=True)
class WeakSignature:
    """What a request shows.  ``base`` is what is signed; without one the secret itself is shown.

    ``levels`` None: all of the key's.
    """

    shown: str
    base: str | None
    levels: str | None = None
    queue: str | None = None

    def is_by(self, secret: str) -> bool:
        """Whether the holder of this secret has sent it."""
        wanted = secret if self.base is None else signed(secret, self.base)
        return is_same(self.shown.rstrip("=").encode(), wanted.encode())


def read(shown: ShownRequest, account: str, now: float, *, is_safe: bool) -> WeakSignature | None:
    """The credentials of CassieQ's; None when there are others, or none.

    A header counts before the query, and there is no second try.
    """
    scheme, _, text = shown.header("authorization").partition(" ")
    text = text.strip()
    if scheme.lower() == "key" and "." not in text:
        if not is_safe or not TOKEN.fullmatch(text):
            raise BadCredentials("a key was sent without TLS, or is malformed")
        return WeakSignature(text, None)
    if scheme.lower() == "signed":
        return _request(shown, account, now, text)
    if not scheme and _is_address(shown.query):
        return _address(shown.query, account, now)
    return None


def signed(secret: str, base: str) -> str:
    """The signature of a text, as CassieQ makes it: a key is base64 without its padding."""
    key = urlsafe_b64decode(secret + "=" * (-len(secret) % 4))
    return urlsafe_b64encode(hmac_sha256(key, base)).decode().rstrip("=")


def request_base(account: str, method: str, path: str, time: str) -> str:
    """What a signed request is over."""
    return "\n".join([account, method, "/" + path.strip("/"), time])


def address_base(
    account: str, levels: str, start: str | None, end: str | None, queue: str | None
) -> str:
    """What a signed address is over."""
    named = [("startTime:", start), ("endTime:", end), ("q:", queue)]
    return "\n".join([account, levels, *(name + value for name, value in named if value)])


def _request(shown: ShownRequest, account: str, now: float, text: str) -> WeakSignature:
    time = shown.header(REQUEST_TIME)
    if abs(_seconds(time) - now) > SKEW_SECONDS or not _SIGNATURE.fullmatch(text):
        raise BadCredentials("the signature is malformed, too old, or from the future")
    return WeakSignature(text, request_base(account, shown.method, shown.path, time))


def _address(query: str, account: str, now: float) -> WeakSignature:
    given = _given(query)
    levels = given.get("auth", "")
    if not levels or set(levels) - set(LEVELS) or not _SIGNATURE.fullmatch(given["sig"]):
        raise BadCredentials("the signed address is malformed")
    start, end, queue = given.get("st"), given.get("et"), given.get("q")
    if (start and _seconds(start) > now) or (end and _seconds(end) <= now):
        raise BadCredentials("the signed address is too early, or over")
    levels = "".join(each for each in LEVELS if each in levels)
    base = address_base(account, levels, start, end, queue)
    return WeakSignature(given["sig"], base, levels, queue)


def _is_address(query: str) -> bool:
    names = {part.partition("=")[0] for part in query.split("&")}
    return "sig" in names and "v" not in names


def _given(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        raise BadCredentials("the query cannot be read") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in _NAMES:
            if name in found or not value or "\n" in value:
                raise BadCredentials("a parameter of the signed address is there twice, or empty")
            found[name] = value
    return found


def _seconds(text: str) -> float:
    if not _TIME.fullmatch(text):
        raise BadCredentials("a time is not as expected")
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise BadCredentials("a time does not exist") from None
