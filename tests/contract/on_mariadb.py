"""Which tests of the contract run every day on MariaDB too.

MariaDB runs the SQL of MySQL.  Every day it runs what it may do in another way: tests with the
marker ``mariadb_differs``, which says what differs; tests about locks, which this file finds; and
the first test of each file, so that what the file is about was called there.  The rest is long on
MariaDB: `make test-long` runs it, and so does a run that leaves an engine out.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

#: Folders of tests/contract of which everything differs.
FOLDERS = {
    "mysql": "it is about what only these two have: blocks of ids, slices, limits, sessions",
    "database": "drivers, settings, limits, kills, deadlocks and plans are each server's own",
    "topics": "roles and rights are read in another way, and sessions have other settings",
}
#: Who uses these is about locks, which are each server's own.
_LOCKS = {"wait_until_blocked", "open_transaction", "give_up_soon", "kill", "ThreadPoolExecutor"}


def leave_to_long(items: Iterable[pytest.Item]) -> None:
    """Give the marker ``long`` to what MariaDB need not show every day."""
    shown: set[str] = set()
    for item in items:
        file, _, _ = item.nodeid.partition("::")
        is_first = file not in shown
        if file.startswith("tests/contract/") and _is_on_mariadb(item) and not is_long(item):
            shown.add(file)
            if not is_first and not why_it_differs(item):
                item.add_marker(pytest.mark.long)


def is_long(item: pytest.Item) -> bool:
    """Whether another marker has left it to `make test-long`."""
    return item.get_closest_marker("long") is not None


def _is_on_mariadb(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    given = callspec.params.values() if callspec else ()
    return any("mariadb" in (each if isinstance(each, tuple) else (each,)) for each in given)


def why_it_differs(item: pytest.Item) -> str:
    """Why a test runs every day on MariaDB too; nothing where it need not."""
    for mark in item.iter_markers("mariadb_differs"):
        return str(mark.args[0])
    if any("mysql" in mark.args for mark in item.iter_markers("long_on")):
        return "MySQL runs it in test-long"
    folder = Path(item.nodeid.partition("::")[0]).parts[2:3]
    if folder and folder[0] in FOLDERS:
        return FOLDERS[folder[0]]
    function = getattr(item, "function", None)
    if isinstance(function, types.FunctionType) and _is_about_locks(function, set()):
        return "locks"
    return ""


def _is_about_locks(function: types.FunctionType, seen: set[types.FunctionType]) -> bool:
    seen.add(function)
    names = set(_names(function.__code__))
    if names & _LOCKS:
        return True
    for name in names:
        helper = getattr(function.__globals__.get(name), "__wrapped__", None)
        helper = helper or function.__globals__.get(name)
        if (
            isinstance(helper, types.FunctionType)
            and helper not in seen
            and helper.__module__.startswith("tests.")
            and _is_about_locks(helper, seen)
        ):
            return True
    return False


def _names(code: types.CodeType) -> Iterator[str]:
    """What a function and the functions inside it mention."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
