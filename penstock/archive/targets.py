"""Where archives are kept: today, directories that this machine and Spark's workers see."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from penstock.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_SLUG_LENGTH = 60


@dataclass(frozen=True, slots=True)
class Target:
    """A named place for archives; the name is what the database records with each copy."""

    name: str
    uri: str

    def __post_init__(self) -> None:
        """Refuse a name or a place that could not be recorded or written."""
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"the archive target's name {self.name!r} is not allowed",
                hint="use up to 63 letters, digits, dots, dashes and underscores",
            )
        scheme = urlparse(self.uri).scheme
        if scheme not in {"", "file"}:
            raise ConfigurationError(
                f"the archive target {self.name} has the scheme {scheme!r}",
                hint="give a directory, as a path or as file:///path",
            )

    @property
    def root(self) -> Path:
        """The directory of the target."""
        parsed = urlparse(self.uri)
        path = unquote(parsed.path) if parsed.scheme == "file" else self.uri
        return Path(path).expanduser().resolve()

    def table_path(self, known_as: str, layout: int = 1) -> Path:
        """The directory of a topic's table: readable, safe on every file system, never shared.

        Every layout has a table of its own.
        """
        slug = re.sub(r"[^a-z0-9]+", "-", known_as.lower()).strip("-")[:_SLUG_LENGTH]
        digest = hashlib.sha256(known_as.encode()).hexdigest()[:8]
        version = "" if layout == 1 else f"-v{layout}"
        return self.root / f"{slug}-{digest}{version}"


def make_durable(path: Path) -> None:
    """Force a file or directory to the disk: the database may drop what an archive holds."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
