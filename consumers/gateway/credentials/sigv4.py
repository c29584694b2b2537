"""AWS's signature, version 4, as the SDKs sign calls of SQS.

Two equal calls in one second have one signature and both are meant.  So there is no check of
replays here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote

from consumers.gateway.credentials.shown import (
    BadCredentials,
    ShownRequest,
    hmac_sha256,
    is_same,
    sha256_hex,
)

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "sqs"
SKEW_SECONDS = 900
_REQUIRED = frozenset({"host", "x-amz-date", "x-amz-target"})
_AUTHORIZATION = re.compile(
    rf"{ALGORITHM} Credential=([A-Za-z0-9_-]{{1,128}})"
    r"/(\d{8})/([a-z0-9-]{1,64})/sqs/aws4_request"
    r",\s?SignedHeaders=([a-z0-9-]+(?:;[a-z0-9-]+)*)"
    r",\s?Signature=([0-9a-f]{64})",
    re.ASCII,
)
_DATE = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_SPACES = re.compile(r" +")


@dataclass(frozen=True, slots=True)
class AwsSignature:
    """A signature as a call shows it, and the lines that it has to be over, before the body's."""

    key_id: str
    day: str
    region: str
    date: str
    lines: str
    #: What the call says of its body; empty: nothing.
    digest: str
    signature: str

    def is_by(self, secret: str, body: bytes) -> bool:
        """Whether the holder of this secret made the signature, over this body."""
        digest = sha256_hex(body)
        canonical = f"{self.lines}\n{digest}"
        scope = f"{self.day}/{self.region}/{SERVICE}/aws4_request"
        base = "\n".join([ALGORITHM, self.date, scope, sha256_hex(canonical.encode())])
        made = hmac_sha256(_key(secret, self.day, self.region), base).hex()
        is_good = is_same(made.encode(), self.signature.encode())
        return is_good and self.digest in {"", digest}


def is_signed(shown: ShownRequest) -> bool:
    """Whether a call is signed in AWS's way, well or not."""
    return shown.header("authorization").startswith("AWS4-")


def read(shown: ShownRequest, now: float) -> AwsSignature:
    """The signature of a call; BadCredentials when it could not be a good one."""
    found = _AUTHORIZATION.fullmatch(shown.header("authorization"))
    if found is None:
        raise BadCredentials("the header Authorization is not as expected")
    key_id, day, region, names, signature = found.groups()
    signed = names.split(";")
    if signed != sorted(set(signed)) or not _REQUIRED.issubset(signed):
        raise BadCredentials("the signature is not over host, x-amz-date and x-amz-target")
    if "x-amz-security-token" in shown.headers or "x-amz-signature" in shown.query.lower():
        raise BadCredentials("session tokens and signed queries are not taken")
    date = shown.header("x-amz-date")
    _require_time(date, day, now)
    if any(name not in shown.headers for name in signed):
        raise BadCredentials("a header that was signed is not there")
    lines = "\n".join(
        [
            shown.method,
            _path(shown.path),
            _query(shown.query),
            *(f"{name}:{_SPACES.sub(' ', shown.headers[name].strip())}" for name in signed),
            "",
            names,
        ]
    )
    digest = shown.header("x-amz-content-sha256")
    return AwsSignature(key_id, day, region, date, lines, digest, signature)


def _require_time(date: str, day: str, now: float) -> None:
    if not _DATE.fullmatch(date) or not date.startswith(day):
        raise BadCredentials("the date of the call is not that of its signature")
    try:
        made = _seconds(date)
    except ValueError:
        raise BadCredentials("the date of the call does not exist") from None
    if abs(now - made) > SKEW_SECONDS:
        raise BadCredentials("the call is too old, or from the future")


@lru_cache(maxsize=1_024)
def _seconds(date: str) -> float:
    """A date as seconds since 1970: many calls have the same one."""
    return datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _path(path: str) -> str:
    """The path without dots and empty parts, encoded once more, as all services but S3 have it."""
    kept: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del kept[-1:]
        elif part not in {"", "."}:
            kept.append(part)
    ends = "/" if kept and path.endswith("/") else ""
    return quote("/" + "/".join(kept) + ends, safe="/~")


def _query(query: str) -> str:
    pairs = [part.partition("=") for part in query.split("&") if part]
    return "&".join(f"{name}={value}" for name, value in sorted((n, v) for n, _, v in pairs))


@lru_cache(maxsize=4_096)
def _key(secret: str, day: str, region: str) -> bytes:
    """The key of one day; it costs as much as all the rest."""
    key = hmac_sha256(f"AWS4{secret}".encode(), day)
    for part in (region, SERVICE, "aws4_request"):
        key = hmac_sha256(key, part)
    return key
