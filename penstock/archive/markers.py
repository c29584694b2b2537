"""The marker of an archive target: that the place is really there, and whose it is.

A target whose disk is not mounted looks like an empty one.  So each target holds a small file with
the id of the installation and the name of the target, written when it is first used.  Where copies
were recorded and the file is missing, the target is unavailable: nothing there is missing, nothing
is forgotten, and nothing is written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.database import call, connect
from penstock.errors import ForeignTarget, TargetUnavailable

if TYPE_CHECKING:
    from penstock.archive.targets import Target

MARKER = ".penstock-target.json"


def require_target(url: str, target: Target, *, write: bool = False) -> str:
    """The installation's id, when the target may be used; TargetUnavailable or ForeignTarget.

    With ``write`` the first use of a target marks it.  A target of before markers were written is
    marked when its tables hold what the database has recorded there.
    """
    with connect(url) as connection:
        installation = str(call(connection, "installation_id")[0][0])
        if _is_marked(target, installation):
            return installation
        if not call(connection, "target_in_use", target=target.name)[0][0]:
            if write:
                mark(target, installation)
        elif _holds_what_is_recorded(connection, target):
            mark(target, installation)
        else:
            raise _unavailable(target, f"it has no {MARKER}, and copies were recorded on it")
    return installation


def check_marker(target: Target, installation: str) -> None:
    """The same without the database, for tasks: the marker has to be there."""
    if not _is_marked(target, installation):
        raise _unavailable(target, f"{MARKER} is not there")


def adopt_target(url: str, target: Target, *, even_without_copies: bool = False) -> bool:
    """Mark a target by hand; False when it was marked already.

    Without ``even_without_copies`` it has to hold the copies that are recorded on it.  With it, a
    new empty disk takes the place of a lost one: backfill then makes its copies again.
    """
    if not even_without_copies:
        was_marked = is_there(target)
        require_target(url, target, write=True)
        return not was_marked
    with connect(url) as connection:
        installation = str(call(connection, "installation_id")[0][0])
    if _is_marked(target, installation):
        return False
    mark(target, installation)
    return True


def marker_path(target: Target) -> Path:
    """Where the marker of a local target lies."""
    return target.root / MARKER


def is_there(target: Target) -> bool:
    """Whether the target has a marker, whosever it is: what is missing is missing only then."""
    try:
        return target.store.read(MARKER) is not None
    except TargetUnavailable:
        return False


def _is_marked(target: Target, installation: str) -> bool:
    """Whether the marker is there and ours; another's is refused."""
    text = target.store.read(MARKER)
    if text is None:
        return False
    try:
        found = json.loads(text)
        owner, name = str(found["installation"]), str(found["target"])
    except (ValueError, KeyError, TypeError):
        raise _unavailable(target, f"its {MARKER} cannot be read") from None
    if (owner, name) != (installation, target.name):
        whose = "another installation" if owner != installation else "this installation"
        raise ForeignTarget(
            f"{target.place} is the archive target {name!r} of {whose}, "
            f"not {target.name!r} of ours",
            hint="give every target of every installation a place of its own",
        )
    return True


def mark(target: Target, installation: str) -> None:
    """Write the marker whole or not at all; of two who do it at once the first one is believed."""
    text = json.dumps({"installation": installation, "target": target.name})
    target.store.put_new(MARKER, text.encode())
    check_marker(target, installation)


def _holds_what_is_recorded(connection: Any, target: Target) -> bool:
    """Whether the tables of a target without a marker are those that the copies were written to."""
    from penstock.archive.table import ArchiveTable

    tables: dict[str, dict[tuple[int, int], tuple[int, int]]] = {}
    for known_as, partition, log_epoch, count, last in call(
        connection, "copies_on", target=target.name
    ):
        if known_as not in tables:
            tables[known_as] = {
                key: (sum(each.event_count for each in files), files[-1].last_sequence)
                for key, files in ArchiveTable(target, known_as).committed().items()
            }
        if tables[known_as].get((partition, log_epoch)) != (count, last):
            return False
    return bool(tables)


def _unavailable(target: Target, what: str) -> TargetUnavailable:
    return TargetUnavailable(
        f"the archive target {target.name} is not available at {target.place}: {what}",
        hint="mount it; if a new place takes over from a lost one: penstock target adopt",
    )
