"""Run a server without the rights of root: PostgreSQL refuses to run as root.

As any other user nothing changes. As root the server runs as ``nobody``. That user may be unable to
reach the programs or the data, because they are below a directory of mode 0700 (a home folder, a
checkout inside one). Then the server keeps one capability, the search of directories. The mode of a
directory is never changed.
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.errors import DatabaseUnavailable

SERVER_USER = "nobody"
# Their numbers in <linux/capability.h>. The narrower one is first; containers may have only the
# other.
SEARCH_CAPABILITIES = {"dac_read_search": 2, "dac_override": 1}
OTHERS_MAY_SEARCH = 0o001


def as_server_user(command: Sequence[str], *, needs: Iterable[Path]) -> list[str]:
    """The command, run as a user who may run a server and who can reach all of ``needs``."""
    if os.geteuid() != 0:
        return list(command)
    setpriv = shutil.which("setpriv", path=f"{os.environ.get('PATH', '')}:/usr/bin:/bin")
    if setpriv is None:
        raise DatabaseUnavailable(
            "PostgreSQL does not run as root, and setpriv, which changes the user, is missing",
            hint="install util-linux, or run as an ordinary user",
        )
    user = pwd.getpwnam(SERVER_USER)
    prefix = [setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    blocked = first_closed_directory(needs)
    if blocked is not None:
        capability = _search_capability(blocked)
        # Without no_setuid_fixup access(2) ignores capabilities, and PostgreSQL does not find its
        # own programs.
        prefix += [
            "--securebits=+no_setuid_fixup",
            f"--inh-caps=+{capability}",
            f"--ambient-caps=+{capability}",
        ]
    return [*prefix, *command]


def give_to_server_user(*paths: Path) -> None:
    """If we are root, make the server's user the owner of these paths."""
    if os.geteuid() != 0:
        return
    user = pwd.getpwnam(SERVER_USER)
    for path in paths:
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


def first_closed_directory(paths: Iterable[Path]) -> Path | None:
    """The first parent directory that is not searchable for every user."""
    for path in paths:
        for parent in reversed(path.resolve().parents):
            if parent.exists() and not parent.stat().st_mode & OTHERS_MAY_SEARCH:
                return parent
    return None


def _search_capability(blocked: Path) -> str:
    held = _permitted_capabilities()
    for name, number in SEARCH_CAPABILITIES.items():
        if held & (1 << number):
            return name
    raise DatabaseUnavailable(
        f"the embedded database runs as user {SERVER_USER}, who may not enter {blocked}",
        hint="move the checkout out of that directory, or run as an ordinary user",
    )


def _permitted_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapPrm:"):
            return int(line.split()[1], 16)
    return 0
