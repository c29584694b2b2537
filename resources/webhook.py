"""The webhook that is told of failed runs: its address, and one post that ends in time.

The address is a secret itself, because who has it can post.  It comes from the environment only,
and no error and no log shows it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from penstock.database import address as addresses
from penstock.errors import ConfigurationError, WebhookUnavailable

VARIABLE = "PENSTOCK_WEBHOOK_URL"

_POSTING = Path(__file__).with_name("posting.py")
_HINT = "write https://HOST/PATH; what a character there cannot be is written as %20"
#: What the process that posts says: a code, or the name of an error, and nothing else.
_WHY = re.compile(r"[A-Za-z0-9_ ]{1,80}")

#: Names of variables whose values are not shown, a login in any address, and `token=...` in a text.
_SECRET = re.compile(r"(?i)passw|secret|token|credential|_key\b|_key_")
_LOGIN = re.compile(r"(?<=://)[^\s/@'\"]+@")
_GIVEN = re.compile(
    r"(?i)\b([\w-]*(?:passw(?:or)?d|secret|token|access[_-]?key|api[_-]?key)[\w-]*)"
    r"\s*=\s*['\"]?[^\s;&,'\"]+"
)
#: A shorter value stands by chance in a text.
_SHORTEST_SECRET = 6


def address(environ: Mapping[str, str] | None = None) -> str:
    """The address that the environment names, checked; empty when it names none."""
    environ = os.environ if environ is None else environ
    given = environ.get(VARIABLE, "").strip()
    if not given:
        return ""
    try:
        parts = urlsplit(given)
        has_login = "@" in parts.netloc
        is_web = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        has_login, is_web = "@" in given, False
    if has_login:
        raise ConfigurationError(
            f"the address in {VARIABLE} has a user or a password",
            hint="leave them out: the secret of a webhook is a part of its path or its query",
        )
    if not is_web or not re.fullmatch(r"[!-~]+", given):
        raise ConfigurationError(f"{VARIABLE} is no address of a web server", hint=_HINT)
    return given


def post(place: str, message: Mapping[str, str], seconds: float) -> None:
    """Post a message as JSON.  WebhookUnavailable, without the address, when it was not taken.

    It ends after ``seconds`` whatever the server does.  A limit on a socket begins anew with every
    byte, so a process of its own posts, and is killed.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(_POSTING), str(seconds)],
            input=json.dumps(message).encode(),
            env={**os.environ, VARIABLE: place},
            capture_output=True,
            timeout=seconds,
            check=False,
        )
        why = "" if done.returncode == 0 else done.stderr.decode("utf-8", "replace").strip()
        why = why if done.returncode == 0 or _WHY.fullmatch(why) else "the post failed"
    except subprocess.TimeoutExpired:
        why = f"no answer within {seconds:g} s"
    except OSError as error:
        why = type(error).__name__
    if why:
        raise WebhookUnavailable(
            f"the webhook of {VARIABLE} did not take the message: {why}",
            hint="look whether the address is right and can be reached",
        )


def without_secrets(text: str, environ: Mapping[str, str] | None = None) -> str:
    """The first line of a text, without what the environment holds in secret.

    Logins in addresses and values like ``token=...`` go too, wherever they come from.
    """
    environ = os.environ if environ is None else environ
    found = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if environ.get(VARIABLE):
        found = found.replace(environ[VARIABLE].strip(), addresses.HIDDEN)
    for name, value in environ.items():
        if name != VARIABLE and "://" in value:
            found = addresses.without_secrets(value, found)
        if _SECRET.search(name) and len(value) >= _SHORTEST_SECRET:
            found = found.replace(value, addresses.HIDDEN)
    found = _LOGIN.sub(f"{addresses.HIDDEN}@", found)
    return _GIVEN.sub(rf"\1={addresses.HIDDEN}", found)
