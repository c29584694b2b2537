"""What of a request its sender may have signed."""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Of each key, a text that is no longer than this.
MAX_TOKEN = 128
TOKEN = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_TOKEN}}}", re.ASCII)

#: The levels of a key, in their order.
LEVELS = "rpuagcd"


class BadCredentials(Exception):
    """A request shows nothing that could be checked, or what it shows is wrong.

    The text is for the log.  Callers are never told which of the two it was.
    """


@dataclass(frozen=True, slots=True)
class ShownRequest:
    """A request as it came: path and query as they stand in its first line, header names small.

    A header that came twice is joined by a comma.  ``body`` comes after the caller is known.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes = field(default=b"", repr=False)

    def header(self, name: str) -> str:
        """The value of a header; empty when it is not there."""
        return self.headers.get(name, "")


def sha256_hex(data: bytes) -> str:
    """The digest of a body as SigV4 writes it."""
    return hashlib.sha256(data).hexdigest()


def content_digest(body: bytes) -> str:
    """The value of the header Content-Digest (RFC 9530)."""
    return f"sha-256=:{b64encode(hashlib.sha256(body).digest()).decode()}:"


def hmac_sha256(secret: bytes, text: str) -> bytes:
    """The one way in which anything is signed here."""
    return hmac.new(secret, text.encode(), hashlib.sha256).digest()


def is_same(one: bytes, other: bytes) -> bool:
    """Whether two signatures are equal.  It takes as long for any that are not."""
    return hmac.compare_digest(one, other)
