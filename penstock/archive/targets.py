"""Where archives are kept: a directory that Spark's workers see too, or an S3-compatible store."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlparse

from penstock.archive.stores import LocalStore, ObjectStore, Store
from penstock.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_SLUG_LENGTH = 60
#: A user or a key with its secret, in which there may be a slash.
_LOGIN = re.compile(r"[^/]*@|[^@]*:[^@]*@")


@dataclass(frozen=True, slots=True)
class Target:
    """A named place for archives; the name is what the database records with each copy."""

    name: str
    uri: str
    #: What an object store needs: endpoint, region, credentials; never shown.
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        """Refuse a name or a place that could not be recorded or written."""
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"the archive target's name {self.name!r} is not allowed",
                hint="use up to 63 letters, digits, dots, dashes and underscores",
            )
        self._require_no_secret()
        scheme = urlparse(self.uri).scheme
        if scheme not in {"", "file", "s3"}:
            raise ConfigurationError(
                f"the archive target {self.name} has the scheme {scheme!r}",
                hint="give a directory, as a path or as file:///path, or s3://bucket/path",
            )
        if self.options and scheme != "s3":
            raise ConfigurationError(
                f"the archive target {self.name} is a directory and has options",
                hint="only s3:// has options",
            )

    def _require_no_secret(self) -> None:
        """The place is recorded and shown, so it holds no login and no parameters."""
        _, is_url, rest = self.uri.partition("://")
        place, _, query = rest.partition("?")
        if is_url and (query or _LOGIN.match(place)):
            raise ConfigurationError(
                f"the place of the archive target {self.name} has a login or parameters in it",
                hint="write s3://bucket/path; keys are options of the policy file that name "
                "environment variables: aws_access_key_id: ${NAME}",
            )

    @property
    def is_local(self) -> bool:
        """Whether it is a directory."""
        return urlparse(self.uri).scheme != "s3"

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return str(self.root) if self.is_local else self.uri

    @property
    def store(self) -> Store:
        """Its files."""
        return _local(self.root) if self.is_local else _objects(self.uri, self.options)

    @property
    def root(self) -> Path:
        """The directory of a local target."""
        if not self.is_local:
            raise ConfigurationError(f"the archive target {self.name} is no directory")
        parsed = urlparse(self.uri)
        path = unquote(parsed.path) if parsed.scheme == "file" else self.uri
        return Path(path).expanduser().resolve()

    def table_path(self, known_as: str, layout: int = 1) -> Path:
        """The directory of a topic's table in a local target."""
        return self.root / self.table_name(known_as, layout)

    def table_name(self, known_as: str, layout: int = 1) -> str:
        """The name of a topic's table: readable, safe on every file system, never shared.

        Every layout has a table of its own.
        """
        slug = re.sub(r"[^a-z0-9]+", "-", known_as.lower()).strip("-")[:_SLUG_LENGTH]
        digest = hashlib.sha256(known_as.encode()).hexdigest()[:8]
        version = "" if layout == 1 else f"-v{layout}"
        return f"{slug}-{digest}{version}"


@lru_cache(maxsize=64)
def _local(root: Path) -> Store:
    return LocalStore(root)


@lru_cache(maxsize=64)
def _objects(uri: str, options: tuple[tuple[str, str], ...]) -> Store:
    return ObjectStore(uri, dict(options))
