"""Which tests run every day on which engine.

MariaDB runs the SQL of MySQL.  Every day it runs what it may do in another way: tests with the
marker ``mariadb_differs``, which says what differs; tests about locks, and tests that ask which of
the two it is, both of which this file finds; and, of folders about SQL, the first test of each
file, so that what the file is about was called there.  The rest is long on MariaDB: `make
test-long` runs it, and so does a run that leaves an engine out.

A mutant of Python is the same on all engines, so PostgreSQL shows it every day.  The folders of
BY_TURNS add Python to the SQL of others: PostgreSQL and MySQL take their tests by turns, but for
the first of a file, and those about locks, guards in SQL or the engine, which both show.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator

import pytest

#: Where a test with an engine as parameter is run on all three.
ABOUT_ENGINES = ("contract", "spark", "coordination", "duties")
#: Of a folder of tests/contract that is about Python, no first test of a file.
ABOUT_PYTHON = ("archive", "cli", "consumer", "gateway", "pages", "upkeep")
#: Folders whose tests PostgreSQL and MySQL share.
BY_TURNS = (
    *("archive", "cli", "consumer", "gateway", "ops", "upkeep"),
    *("coordination", "duties", "spark"),
)
#: Folders of tests/contract of which everything differs.
FOLDERS = {"database": "drivers, settings, limits, kills, deadlocks and plans"}
#: Who uses these is about locks, which are each server's own.
_LOCKS = {"wait_until_blocked", "open_transaction", "give_up_soon", "kill", "ThreadPoolExecutor"}
_ASKS = {"mariadb", "is_mariadb"}
#: Who uses these takes a guard out of the SQL.
_SQL_MUTANTS = {"without_guard", "without_guards", "mutate", "without"}


def leave_to_long(items: Iterable[pytest.Item]) -> None:
    """Give the marker ``long`` to what an engine need not show every day.

    Raises:
        pytest.UsageError: a test would run on no engine.
    """
    shown: set[str] = set()
    turns: dict[str, list[str]] = {}
    before = [item for item in items if not is_long(item)]
    for item in before:
        file, _, _ = item.nodeid.partition("::")
        folders = file.split("/")[1:-1]
        if not set(folders[:1]) & {*ABOUT_ENGINES}:
            continue
        if any(_is_on(item, engine) for engine in _left_out(item, folders[-1], turns)):
            item.add_marker(pytest.mark.long)
        if _is_on(item, "mariadb"):
            is_first = file not in shown and not set(folders) & {*ABOUT_PYTHON, *ABOUT_ENGINES[1:]}
            shown.add(file)
            if is_mutant_of_python(item) or not (is_first or why_it_differs(item)):
                item.add_marker(pytest.mark.long)
    if lost := _functions(before) - _functions(item for item in before if not is_long(item)):
        raise pytest.UsageError(f"no engine runs this every day: {', '.join(sorted(lost))}")


def _functions(items: Iterable[pytest.Item]) -> set[str]:
    return {item.nodeid.partition("[")[0] for item in items}


def _left_out(item: pytest.Item, folder: str, turns: dict[str, list[str]]) -> list[str]:
    """Which of PostgreSQL and MySQL leaves a test to the other one."""
    file, _, name = item.nodeid.partition("[")[0].partition("::")
    names = turns.setdefault(file, [])
    if name not in names:
        names.append(name)
    if is_mutant_of_python(item):
        return ["mysql"]
    function = getattr(item, "function", None)
    marks = [mark for kind in ("long_on", "parametrize") for mark in item.iter_markers(kind)]
    engines = [mark for mark in marks if mark.name == "long_on" or mark.args[0] == "db"]
    if folder not in BY_TURNS or name == names[0] or engines or function is None:
        return []
    if (_LOCKS | _SQL_MUTANTS | {"skip"}) & {*_mentioned(function, set())}:
        return []
    if "engine" in _names(function.__code__):
        return []
    return [("postgres", "mysql")[names.index(name) % 2]]


def is_long(item: pytest.Item) -> bool:
    """Whether another marker has left it to `make test-long`."""
    return item.get_closest_marker("long") is not None


def _is_on(item: pytest.Item, engine: str) -> bool:
    callspec = getattr(item, "callspec", None)
    given = callspec.params.values() if callspec else ()
    return any(engine in (each if isinstance(each, tuple) else (each,)) for each in given)


def is_mutant_of_python(item: pytest.Item) -> bool:
    """Whether a test takes a guard out of Python, on PostgreSQL as well."""
    function, fixtures = getattr(item, "function", None), getattr(item, "fixturenames", ())
    if not isinstance(function, types.FunctionType) or not {"db", "monkeypatch"} <= {*fixtures}:
        return False
    guards = any(mark.kwargs["guard"] for mark in item.iter_markers("proves"))
    elsewhere = any("postgres" in mark.args for mark in item.iter_markers("long_on"))
    # Where an engine skips it, another has to run it.
    others = _SQL_MUTANTS | {"skip"}
    return guards and not elsewhere and not others & {*_mentioned(function, set())}


def why_it_differs(item: pytest.Item) -> str:
    """Why a test runs every day on MariaDB too; nothing where it need not."""
    for mark in item.iter_markers("mariadb_differs"):
        return str(mark.args[0])
    if any("mysql" in mark.args for mark in item.iter_markers("long_on")):
        return "MySQL runs it in test-long"
    folder = item.nodeid.split("/")[2]
    if folder in FOLDERS:
        return FOLDERS[folder]
    function = getattr(item, "function", None)
    return _why_by_code(function) if isinstance(function, types.FunctionType) else ""


@functools.cache
def _why_by_code(function: types.FunctionType) -> str:
    if _LOCKS & set(_mentioned(function, set())):
        return "locks"
    return "it asks" if _ASKS & set(_names(function.__code__)) else ""


def _mentioned(function: types.FunctionType, seen: set[types.FunctionType]) -> Iterator[str]:
    """What a test and its helpers mention."""
    seen.add(function)
    for name in set(_names(function.__code__)):
        yield name
        for helper in _functions_in(function.__globals__.get(name)):
            if (
                helper not in seen
                and helper.__module__.startswith("tests.")
                and not helper.__module__.startswith("tests.contract.databases")
            ):
                yield from _mentioned(helper, seen)


def _functions_in(given: object) -> Iterator[types.FunctionType]:
    """The function that a name stands for, or those of a table of cases."""
    if isinstance(given, dict | tuple):
        for each in given.values() if isinstance(given, dict) else given:
            yield from _functions_in(each)
    helper = getattr(given, "__wrapped__", given)
    if isinstance(helper, types.FunctionType):
        yield helper


def _names(code: types.CodeType) -> Iterator[str]:
    """What a function and the functions inside it mention."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
        elif isinstance(constant, str):
            yield constant
