"""Signed requests by RFC 9421: HMAC-SHA256 over method, authority, path, query and body.

    Content-Digest: sha-256=:...:
    Signature-Input: sig=("@method" "@authority" "@path" "@query" "content-digest")
        ;created=1764190000;nonce="...";keyid="...";alg="hmac-sha256"
    Signature: sig=:...:

The RFC leaves much to whoever verifies.  Here a request has one signature, over exactly these five
components in any order, with ``created``, ``nonce`` and ``keyid``.  All else is refused.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass

from consumers.gateway.credentials.shown import (
    BadCredentials,
    ShownRequest,
    content_digest,
    hmac_sha256,
    is_same,
)

#: A request counts so long before and after its ``created``.
LIFETIME_SECONDS = 300

_COMPONENTS = ("@method", "@authority", "@path", "@query", "content-digest")
_INPUT = re.compile(
    r"(?P<label>[a-z][a-z0-9_.-]{0,31})="
    r'(?P<params>\((?P<names>"[a-z@-]+"(?: "[a-z@-]+")*)\)'
    r'(?P<rest>(?:;[a-z]+=(?:[0-9]{1,12}|"[!#-\[\]-~]{1,128}"))*))',
    re.ASCII,
)
_PARAMETER = re.compile(r';([a-z]+)=(?:([0-9]+)|"([^"]*)")')
_SIGNATURE = re.compile(r"([a-z][a-z0-9_.-]{0,31})=:([A-Za-z0-9+/]{43}=):", re.ASCII)
_NONCE = re.compile(r"[A-Za-z0-9_.=+/-]{16,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A signature as a request shows it, and the text that it has to be over."""

    key_id: str
    created: int
    nonce: str
    #: What Content-Digest says of the body; the body itself comes later.
    digest: str
    base: str
    signature: bytes

    def is_by(self, secret: str) -> bool:
        """Whether the holder of this secret made the signature."""
        return is_same(hmac_sha256(secret.encode(), self.base), self.signature)

    def is_over(self, body: bytes) -> bool:
        """Whether this is the body that was signed.

        Compared as the text that is signed: of one body there is one such text.
        """
        return self.digest == content_digest(body)


def is_signed(shown: ShownRequest) -> bool:
    """Whether a request has a signature of this kind, good or not."""
    return "signature-input" in shown.headers or "signature" in shown.headers


def read(shown: ShownRequest, authority: str, now: float) -> SignedRequest:
    """The signature of a request; BadCredentials when it could not be a good one.

    ``authority`` is the name, and if need be the port, by which the gateway is called.
    """
    declared = _INPUT.fullmatch(shown.header("signature-input"))
    signature = _SIGNATURE.fullmatch(shown.header("signature"))
    if declared is None or signature is None or signature[1] != declared["label"]:
        raise BadCredentials("the signature's headers are not as expected")
    names = [name.strip('"') for name in declared["names"].split(" ")]
    if sorted(names) != sorted(_COMPONENTS):
        raise BadCredentials("the signature is not over the five components")
    parameters = _parameters(declared["rest"])
    created = int(parameters["created"])
    if abs(now - created) > LIFETIME_SECONDS:
        raise BadCredentials("the signature is too old, or from the future")
    lines = [f'"{name}": {_value(shown, authority, name)}' for name in names]
    base = "\n".join([*lines, f'"@signature-params": {declared["params"]}'])
    try:
        found = b64decode(signature[2], validate=True)
    except ValueError:
        raise BadCredentials("the signature is not base64") from None
    if b64encode(found).decode() != signature[2]:
        raise BadCredentials("the signature is base64 in an unusual form")
    digest = shown.header("content-digest")
    return SignedRequest(parameters["keyid"], created, parameters["nonce"], digest, base, found)


def sign(
    shown: ShownRequest, authority: str, key_id: str, secret: str, *, created: int, nonce: str
) -> dict[str, str]:
    """The headers that a client adds."""
    digest = content_digest(shown.body)
    names = " ".join(f'"{name}"' for name in _COMPONENTS)
    params = f'({names});created={created};nonce="{nonce}";keyid="{key_id}";alg="hmac-sha256"'
    whole = ShownRequest(shown.method, shown.path, shown.query, {"content-digest": digest})
    lines = [f'"{name}": {_value(whole, authority, name)}' for name in _COMPONENTS]
    base = "\n".join([*lines, f'"@signature-params": {params}'])
    signature = b64encode(hmac_sha256(secret.encode(), base)).decode()
    return {
        "Content-Digest": digest,
        "Signature-Input": f"sig={params}",
        "Signature": f"sig=:{signature}:",
    }


def _parameters(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, number, quoted in _PARAMETER.findall(text):
        if name in found:
            raise BadCredentials("a parameter of the signature is there twice")
        found[name] = number or quoted
    # In quotes a number would be another text that counts as the same.
    if not found.keys() >= {"created", "nonce", "keyid"} or found.keys() - {
        "created", "nonce", "keyid", "alg",
    }:  # fmt: skip
        raise BadCredentials("the parameters of the signature are not as expected")
    if found.get("alg", "hmac-sha256") != "hmac-sha256" or not found["created"].isdigit():
        raise BadCredentials("the signature is of another kind")
    if not _NONCE.fullmatch(found["nonce"]):
        raise BadCredentials("the nonce is too short, or has unusual characters")
    return found


_VALUES: dict[str, Callable[[ShownRequest, str], str]] = {
    "@method": lambda shown, _: shown.method,
    "@authority": lambda _, authority: authority,
    "@path": lambda shown, _: shown.path or "/",
    "@query": lambda shown, _: f"?{shown.query}",
    "content-digest": lambda shown, _: shown.header("content-digest"),
}


def _value(shown: ShownRequest, authority: str, name: str) -> str:
    return _VALUES[name](shown, authority)
