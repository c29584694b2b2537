"""Calls of a procedure that `migrate` is replacing.

MySQL cannot replace a procedure.  It is dropped, made again, and gets the rights of the roles.  A
call in between fails.  The migration holds a lock of the server from its beginning to its end, and
whoever lacks a procedure can see by it whether waiting helps.

It does not help inside of a transaction.  Its failed call has locked the name of the procedure up
to its end, and the migration waits for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from penstock.errors import MigrationRunning

#: For how long a call waits for its procedure.  After that the error is passed on.
LONGEST_WAIT_SECONDS = 30.0
_PAUSE_SECONDS = 0.02


def pauses(is_migrating: Callable[[], bool], *, is_alone: bool) -> Iterator[float]:
    """The pauses before a call is made again, for as long as a migration runs.

    Only a call that failed between two looks without a migration lacks its procedure for good:
    before the first look, the migration may just have ended.  MigrationRunning unless the call is
    alone in its transaction.
    """
    until = time.monotonic() + LONGEST_WAIT_SECONDS
    was_migrating = True
    while time.monotonic() < until:
        was_migrating, before = is_migrating(), was_migrating
        if was_migrating and not is_alone:
            raise MigrationRunning(
                "`penstock migrate` is replacing a procedure that the call needs",
                hint="roll back and begin the transaction again, as after a deadlock",
            )
        if not (was_migrating or before):
            return
        yield _PAUSE_SECONDS
