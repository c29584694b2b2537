"""Run a server process as a user who may run one, and end only that process."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.errors import DatabaseUnavailable
from resources.system_user import as_server_user, give_to_server_user
from tools.servers.errors import ServerUnavailable


def as_server(command: Sequence[str], *, needs: Iterable[Path]) -> list[str]:
    """The command.  If we are root, it runs as a user who owns nothing but the server's data."""
    try:
        return as_server_user(command, needs=needs)
    except DatabaseUnavailable as error:
        raise ServerUnavailable(error.message, hint=error.hint) from error


def give(folder: Path) -> None:
    """If we are root, make the server's user the owner of a folder and all that it holds."""
    give_to_server_user(folder, *folder.rglob("*"))


def spawn(
    command: Sequence[str], *, needs: Iterable[Path], log: Path, die_with_parent: bool
) -> subprocess.Popen[bytes]:
    """Start a server that writes into ``log``.

    With ``die_with_parent`` the kernel kills it when the thread that started it ends, however that
    ends.  setpriv asks for that after it has changed the user, because a change of user cancels it.
    """
    setpriv = shutil.which("setpriv", path=f"{os.environ.get('PATH', '')}:/usr/bin:/bin")
    bound = list(command)
    if die_with_parent:
        if setpriv is None:
            raise ServerUnavailable("setpriv is missing", hint="install util-linux")
        bound = [setpriv, "--pdeathsig=KILL", "--", *bound]
    with log.open("ab") as output:
        return subprocess.Popen(
            as_server(bound, needs=needs),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the tests, which then stop their servers in order.
            start_new_session=True,
        )


def mentions(pid: int, word: Path | str) -> bool:
    """Whether this process has the word in its command.  Its id may have been reused since."""
    try:
        return os.fsencode(word) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def end(pid: int, word: Path | str, *, timeout: float) -> bool:
    """SIGTERM, then SIGKILL, to the process of this id and word.  False when there is none."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # Asked after the descriptor was opened: from now on it can mean no other process.
        if not mentions(pid, word):
            return False
        for number, patience in ((signal.SIGTERM, timeout), (signal.SIGKILL, timeout)):
            try:
                signal.pidfd_send_signal(descriptor, number)
            except ProcessLookupError:
                return True
            if _ended(descriptor, patience):
                return True
    finally:
        os.close(descriptor)
    raise ServerUnavailable(f"process {pid} does not end, not even by SIGKILL")


def _ended(descriptor: int, timeout: float) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(timeout * 1000))
