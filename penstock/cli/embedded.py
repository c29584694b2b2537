"""The embedded database of a checkout, used when no other database is configured.

``make dev`` and ``python -m resources.embedded start`` start it in the checkout's ``.penstock``.
This module only reads its files: the package that starts it is not part of the wheel.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from penstock.cli.output import say
from penstock.database import config
from penstock.database.postgres import pid_file

#: Names another directory than ``.penstock/postgres``.
DIRECTORY_VARIABLE = "PENSTOCK_EMBEDDED_DIRECTORY"
_DIRECTORY = Path(".penstock") / "postgres"
_DATABASE = "penstock"
_START = "python -m resources.embedded start"


@contextmanager
def found_where_none_is_configured() -> Iterator[None]:
    """Use it for the time of a command.  A configured database is never replaced."""
    directory = None if config.is_configured() else _directory()
    if directory is None:
        yield
        return
    url = _url(directory)
    if url is None:
        say(f"the embedded database in {directory} is not running. run: {_START}")
        yield
        return
    say(f"no database is configured: this is the embedded one, {config.redact(url)} ({directory})")
    # The environment, so that sub-commands, their threads and processes all see it.
    os.environ[config.URL_VARIABLE] = url
    try:
        yield
    finally:
        del os.environ[config.URL_VARIABLE]


def running() -> tuple[Path, str] | None:
    """The directory of the embedded database and its address, while it runs."""
    directory = _directory()
    url = None if directory is None else _url(directory)
    return None if directory is None or url is None else (directory, url)


def _directory() -> Path | None:
    """The directory that is named, or the one in the present folder or above it.

    It must belong to this user, because any user can make one.
    """
    named = os.environ.get(DIRECTORY_VARIABLE)
    here = Path.cwd()
    candidates = [Path(named)] if named else [each / _DIRECTORY for each in (here, *here.parents)]
    for each in candidates:
        try:
            if (each / "password").is_file() and each.stat().st_uid == os.geteuid():
                return each
        except OSError:
            continue
    return None


def _url(directory: Path) -> str | None:
    """The address of the database while it runs."""
    found = pid_file.running(directory / "data")
    if found is None:
        return None
    try:
        password = (directory / "password").read_text().strip()
    except OSError:
        return None
    return f"postgresql://postgres:{quote(password, safe='')}@127.0.0.1:{found[1]}/{_DATABASE}"
