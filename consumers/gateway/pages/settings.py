"""What the page is given: its key, and its own login of the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from consumers.gateway.settings import ADMIN_KEY, ADMIN_KEY_FILE, ADMIN_URL
from penstock.database import config
from penstock.errors import ConfigurationError

_SHORTEST = 32


@dataclass(frozen=True, slots=True)
class PageSettings:
    """The key that opens the page, the database, and whether the page may change anything.

    Without a key the page is closed.
    """

    key: str | None = field(default=None, repr=False)
    url: str = field(default="", repr=False)
    writes: bool = False


def page_settings(environ: Mapping[str, str], may: str) -> PageSettings:
    """What the environment says; ``may`` is the option of that name: read or write."""
    key = _key(environ)
    if key is None:
        return PageSettings()
    if len(key) < _SHORTEST:
        raise ConfigurationError(
            "the key of the page is too short",
            hint=f"use at least {_SHORTEST} random characters: openssl rand -hex 32",
        )
    url = environ.get(ADMIN_URL, "").strip()
    if url:
        config.dialect_of_url(url)
    return PageSettings(key, url or config.database_url(environ), may == "write")


def _key(environ: Mapping[str, str]) -> str | None:
    file = environ.get(ADMIN_KEY_FILE, "").strip()
    if not file:
        return environ.get(ADMIN_KEY, "").strip() or None
    try:
        return Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"the file that {ADMIN_KEY_FILE} names cannot be read: {type(error).__name__}",
            hint="write the key of the page to it: openssl rand -hex 32",
        ) from None
