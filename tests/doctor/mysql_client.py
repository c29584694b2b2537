"""The command-line clients of MySQL and MariaDB, out of Debian's packages."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.support import missing
from tools.debian import DebianUnavailable, through_own_loader, unpack

HOME = Path(__file__).resolve().parents[2] / ".penstock" / "servers"
#: Each speaks to its own server best: MariaDB's does not know how MySQL asks for passwords.
SUITES = {"mysql": "sid", "mariadb": "trixie"}


def client(engine: str) -> list[str]:
    """The start of the command that is called `mysql` where it is installed."""
    try:
        root = unpack([f"{engine}-client-core"], SUITES[engine], HOME / f"{engine}-client")
    except (DebianUnavailable, OSError) as error:
        missing(f"the client of {engine}", error)
    # Nothing of the machine's own files.
    return [*through_own_loader(root, f"usr/bin/{engine}"), "--no-defaults"]


def on_the_path(engine: str, folder: Path) -> Path:
    """A folder with a program `mysql`, for commands that call it so."""
    folder.mkdir(exist_ok=True)
    program = folder / "mysql"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(client(engine))} "$@"\n')
    program.chmod(0o755)
    return folder
