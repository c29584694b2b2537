"""Signed URLs: whoever has the address may do what it says, until it ends.

CassieQ's parameters are kept (``auth``, ``q``, ``st``, ``et``, ``sig``).  New are the version
``v=2``, the key's id ``kid`` and the class of methods ``m``: ``read`` is for GET, ``all`` for every
method.  A URL lasts at most seven days.  Other parameters are the caller's own.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, quote

from consumers.gateway.credentials.shown import (
    LEVELS,
    TOKEN,
    BadCredentials,
    ShownRequest,
    hmac_sha256,
    is_same,
)

LONGEST = timedelta(days=7)
_SIGNED = ("kid", "auth", "m", "q", "st", "et")
_NAMES = frozenset({"v", "sig", *_SIGNED})
_REQUIRED = _NAMES - {"q"}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_SIGNATURE = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SignedUrl:
    """A signed URL as a request shows it, and the text that its signature has to be over."""

    key_id: str
    levels: str
    queue: str | None
    base: str
    signature: str

    def is_by(self, secret: str) -> bool:
        """Whether the holder of this secret made the URL."""
        return is_same(_signed(secret, self.base).encode(), self.signature.encode())


def is_signed(shown: ShownRequest) -> bool:
    """Whether a request's address is signed, well or not."""
    return any(part.startswith("sig=") for part in shown.query.split("&"))


def read(shown: ShownRequest, account: str, now: float) -> SignedUrl:
    """What a signed address says; BadCredentials when it could not be a good one."""
    given = _given(shown.query)
    if given["v"] != "2" or given["m"] not in {"read", "all"}:
        raise BadCredentials("the signed address is of another kind")
    if given["m"] == "read" and shown.method != "GET":
        raise BadCredentials("the signed address is for reading")
    if not TOKEN.fullmatch(given["kid"]) or not _SIGNATURE.fullmatch(given["sig"]):
        raise BadCredentials("the key or the signature is malformed")
    if not given["auth"] or given["auth"] != _in_order(given["auth"]):
        raise BadCredentials("the levels are not letters in their order")
    start, end = _time(given["st"]), _time(given["et"])
    if not start <= datetime.fromtimestamp(now, UTC) < end or end - start > LONGEST:
        raise BadCredentials("the signed address is too early, over, or too long")
    queue = given.get("q")
    return SignedUrl(given["kid"], given["auth"], queue, _base(account, given), given["sig"])


def sign(
    account: str,
    key_id: str,
    secret: str,
    *,
    levels: str,
    start: datetime,
    end: datetime,
    reads_only: bool = False,
    queue: str | None = None,
) -> str:
    """The parameters of a signed address, to be added to its query."""
    given = {
        "v": "2",
        "kid": key_id,
        "auth": _in_order(levels),
        "m": "read" if reads_only else "all",
        "st": _text(start),
        "et": _text(end),
    }
    if queue is not None:
        given["q"] = queue
    given["sig"] = _signed(secret, _base(account, given))
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in given.items())


def _given(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        raise BadCredentials("the query cannot be read") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in _NAMES:
            if name in found or "\n" in value:
                raise BadCredentials("a parameter of the signed address is there twice")
            found[name] = value
    if not found.keys() >= _REQUIRED:
        raise BadCredentials("a parameter of the signed address is missing")
    return found


def _base(account: str, given: Mapping[str, str]) -> str:
    """What is signed: each parameter in a line with its name, so that none is taken for another."""
    named = [f"{name} {given[name]}" for name in _SIGNED if name in given]
    return "\n".join(["penstock url 2", account, *named])


def _signed(secret: str, base: str) -> str:
    return urlsafe_b64encode(hmac_sha256(secret.encode(), base)).decode().rstrip("=")


def _in_order(levels: str) -> str:
    return "".join(each for each in LEVELS if each in levels)


def _text(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(text: str) -> datetime:
    if not _TIME.fullmatch(text):
        raise BadCredentials("a time of the signed address is not as expected")
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise BadCredentials("a time of the signed address does not exist") from None
