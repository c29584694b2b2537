"""Whose turn it is: accounts share a few places by what they cost, not by how much they ask for.

Each account has a time of its own, which goes on by the cost of what was done for it.  The account
whose time is the least is next.  One that comes anew begins at the time of the one that was served
last: it is not behind, and it has saved nothing up.  The last free place is for an account that has
none, so that what is slow for one account stands in the way of no other.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

#: The gateway itself, which acts for no account: it may have every place.
OWN = ""
#: So many accounts are remembered, with what they have had, that want nothing at the moment.
_REMEMBERED = 1_024


@dataclass(slots=True)
class _Account:
    number: int
    #: Its own time, and what one of its turns is expected to cost.
    time: float
    expected: float = 0.0
    waiting: int = 0
    running: int = 0
    is_listed: bool = False


@dataclass(slots=True)
class Turn:
    """A place that an account has, and what it was charged for that."""

    account: str
    charged: float
    #: False: it shares the place of another one.
    has_place: bool = True


class Turns:
    """Gives places to accounts in turn."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._free = places
        self._accounts: dict[str, _Account] = {}
        #: Those that wait, the one with the least time first.  A time may have moved on since.
        self._line: list[tuple[float, int, str]] = []
        self._numbers = itertools.count()
        self._time = 0.0
        self.waiting = 0

    def waiting_of(self, account: str) -> int:
        """How much waits of an account."""
        found = self._accounts.get(account)
        return found.waiting if found else 0

    def has_room(self, account: str, most: int) -> bool:
        """Whether one more of an account may wait, where ``most`` may wait in all.

        An account may take as much room as it leaves free.  So one alone can have a half, and
        however many take what they can get, there is room for another.
        """
        return self.waiting_of(account) < most - self.waiting

    def wait(self, account: str) -> None:
        """One more of an account waits for a place."""
        found = self._accounts.get(account)
        if found is None:
            self._forget()
            found = self._accounts[account] = _Account(next(self._numbers), self._time)
        if not found.waiting and not found.running:
            found.time = max(found.time, self._time)
        found.waiting += 1
        self.waiting += 1
        self._list(account, found)

    def leave(self, account: str) -> None:
        """One of an account waits no longer, and got no place."""
        self._accounts[account].waiting -= 1
        self.waiting -= 1

    def begin(self) -> Turn | None:
        """The turn of the account that gets a place now; None: nobody waits who may have one.

        Until it is known what the turn costs, it is charged what the account's turns have cost.
        """
        account = self._next_for_place(is_last=self._free == 1) if self._free else None
        if account is None:
            return None
        self._free -= 1
        return self._begun(account, self._accounts[account])

    def join(self) -> Turn | None:
        """The turn of the account that is next, in the place of the turn that was begun last.

        If that was the last place, those that have one already stay out of it too.
        """
        account = self._next_for_place(is_last=self._free == 0)
        if account is None:
            return None
        turn = self._begun(account, self._accounts[account])
        turn.has_place = False
        return turn

    def _next_for_place(self, *, is_last: bool) -> str | None:
        """The account that is next, for a place.  The last place is for those that have none."""
        passed: list[str] = []
        while (account := self._next()) is not None:
            is_open = not is_last or self._places == 1 or account == OWN
            if is_open or not self._accounts[account].running:
                break
            passed.append(account)
        for each in passed:
            self._list(each, self._accounts[each])
        return account

    def _next(self) -> str | None:
        """The account with the least time of those that wait.  It is taken from the line."""
        while self._line:
            time, _, account = heapq.heappop(self._line)
            found = self._accounts[account]
            found.is_listed = False
            if not found.waiting:
                continue
            if time == found.time:
                return account
            self._list(account, found)  # it was charged since
        return None

    def charge(self, turn: Turn, cost: float) -> None:
        """The turn costs so much."""
        found = self._accounts[turn.account]
        found.time += cost - turn.charged
        found.expected = (found.expected + cost) / 2
        turn.charged = cost

    def end(self, turn: Turn) -> None:
        """Its place is free again."""
        found = self._accounts[turn.account]
        found.running -= 1
        self._free += turn.has_place
        if not (self.waiting or found.running or found.is_listed):
            del self._accounts[turn.account]  # nobody waits: there is nothing to make up for

    def _begun(self, account: str, found: _Account) -> Turn:
        self._time = max(self._time, found.time)
        found.waiting -= 1
        found.running += 1
        found.time += found.expected
        self.waiting -= 1
        if found.waiting:
            self._list(account, found)
        return Turn(account, found.expected)

    def _list(self, account: str, found: _Account) -> None:
        if not found.is_listed:
            found.is_listed = True
            heapq.heappush(self._line, (found.time, found.number, account))

    def _forget(self) -> None:
        """What is known of accounts that want nothing, when that is known of many."""
        if len(self._accounts) < _REMEMBERED:
            return
        for name, each in list(self._accounts.items()):
            if not (each.waiting or each.running or each.is_listed):
                del self._accounts[name]
