"""The log in memory as an engine of the contract: in Python, what a test does by SQL elsewhere."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from typing import Any

from penstock.testing import MemoryDatabase, VirtualClock, statements
from tests.kit.log import wait_until

#: Tables of the databases that have another name in memory, or are part of another one.
_TABLES = {"events": ("log", "unsequenced"), "positions": ("leases",)}


class MemoryContractDatabase:
    """A log whose clock runs as those of the servers do."""

    def __init__(self) -> None:
        self.engine = "memory"
        self._database = MemoryDatabase(VirtualClock(running=True))
        self._tables = self._database._store.tables
        self.url = self._database.url
        self._opened: list[Any] = []
        self._restore: list[Callable[[], None]] = []
        self._mutants: dict[str, str] = {}

    def connect(self, autocommit: bool = True) -> Any:
        self._opened.append(self._database.connect(autocommit))
        return self._opened[-1]

    def run(self, sql: str, binds: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """There is no SQL: a test that needs it does not run in memory."""
        rows: list[tuple[Any, ...]] = self.connect().execute(sql, binds)
        return rows

    def without_guard(self, function: str, old_text: str, new_text: str) -> None:
        """``function`` is ``module.function`` of penstock.testing."""
        module = import_module(f"penstock.testing.{function.partition('.')[0]}")
        name = function.partition(".")[2]
        original = getattr(module, name)
        present = self._mutants.get(function) or inspect.getsource(original)
        assert present.count(old_text) == 1, f"{function} holds {old_text!r} not exactly once"
        self._mutants[function] = present.replace(old_text, new_text)
        exec(self._mutants[function], vars(module))

        def restore() -> None:
            setattr(module, name, original)
            if name in statements.answered():
                statements.statement(original)

        self._restore.append(restore)

    def wait_until_blocked(self, connection: Any) -> None:
        wait_until(lambda: connection.is_waiting, "a statement waits for a lock")

    def count(self, table: str) -> int:
        """How many rows a table has."""
        return sum(len(self._tables[each]) for each in _TABLES.get(table, (table,)))

    def end_lease(self, consumer: str) -> None:
        """As if the lease time of a consumer had passed."""
        members = self._tables["consumers"]
        (place,) = [each for each in members if each[1] == consumer]
        past = self._database.clock.now() - timedelta(days=1)
        members[place] = replace(members[place], deadline=past)

    def acquired(self) -> int:
        """How often a lease was acquired."""
        changes = self._tables["lease_history"].values()
        return sum(each.change == "acquired" for each in changes)

    def close(self) -> None:
        for restore in reversed(self._restore):
            restore()
        for connection in self._opened:
            with contextlib.suppress(Exception):
                connection.close()
