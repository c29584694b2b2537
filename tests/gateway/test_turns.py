"""Accounts take turns by what they cost, whatever they ask for: the scheduler by itself."""

from __future__ import annotations

import heapq
import random
from collections import Counter

import pytest

from consumers.gateway.turns import Turn, Turns
from tests.kit.proof import proves

#: What a turn of each account costs; all ask for more than there is.
COSTS = {"a": 100.0, "b": 10.0, "c": 1.0}


def _spent(turns: Turns, rounds: int, rng: random.Random) -> Counter[str]:
    """What each account has had after so many turns."""
    spent: Counter[str] = Counter()
    for account in COSTS:
        for _ in range(5):
            turns.wait(account)
    # A turn lasts as long as it costs; those that run now, by the time of their end.
    running: list[tuple[float, int, float, Turn]] = []
    now = 0.0
    for number in range(rounds):
        while (turn := turns.begin()) is not None:
            cost = COSTS[turn.account] * rng.uniform(0.5, 1.5)
            heapq.heappush(running, (now + cost, number, cost, turn))
        now, _, cost, turn = heapq.heappop(running)
        spent[turn.account] += round(cost)
        turns.charge(turn, cost)
        turns.end(turn)
        turns.wait(turn.account)
    return spent


@proves("fair turns of the gateway")
@pytest.mark.parametrize("places", [1, 4])
@pytest.mark.parametrize("seed", range(5))
def test_all_who_want_more_than_there_is_have_the_same(places: int, seed: int) -> None:
    """By cost, within the cost of a few turns; so one with small calls gets many of them."""
    spent = _spent(Turns(places), 3_000, random.Random(seed))
    assert max(spent.values()) - min(spent.values()) <= 300 * places, spent


@proves("fair turns of the gateway", guard="cost")
def test_without_the_cost_who_asks_for_the_most_has_the_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutant: turns are counted."""
    monkeypatch.setattr(Turns, "charge", lambda turns, turn, _: _charge(turns, turn, 1.0))
    spent = _spent(Turns(1), 2_000, random.Random(0))
    assert spent["a"] > 50 * spent["c"]


_charge = Turns.charge


def _done(turns: Turns, cost: float) -> str:
    turn = turns.begin()
    assert turn is not None
    turns.charge(turn, cost)
    turns.end(turn)
    return turn.account


@proves("fair turns of the gateway")
def test_who_comes_anew_is_next_and_has_saved_nothing_up() -> None:
    """It comes before what waits of another, once: after that they take turns."""
    turns = Turns(1)
    for _ in range(6):
        turns.wait("noisy")
    assert [_done(turns, 1.0) for _ in range(3)] == ["noisy"] * 3
    for _ in range(3):
        turns.wait("quiet")
    assert [_done(turns, 1.0) for _ in range(6)] == ["quiet", "noisy"] * 3


def test_the_last_place_is_for_an_account_that_has_none() -> None:
    """Slow calls of one account stand in the way of no other."""
    turns = Turns(3)
    for _ in range(5):
        turns.wait("slow")
    slow = [turns.begin(), turns.begin()]
    assert all(slow)
    assert turns.begin() is None
    turns.wait("quick")
    quick = turns.begin()
    assert quick is not None
    assert quick.account == "quick"
    turns.end(quick)
    assert turns.begin() is None
    assert slow[0] is not None
    turns.end(slow[0])
    assert turns.begin() is not None


def test_with_one_place_it_is_for_whoever_is_next() -> None:
    turns = Turns(1)
    turns.wait("only")
    assert turns.begin() is not None


@proves("fair turns of the gateway")
def test_an_account_may_take_as_much_room_as_it_leaves() -> None:
    """However many take what they can get, there is room for another."""
    turns = Turns(1)
    for account in map(str, range(6)):
        while turns.has_room(account, 64):
            turns.wait(account)
    assert [turns.waiting_of(str(each)) for each in range(6)] == [32, 16, 8, 4, 2, 1]
    assert turns.has_room("another", 64)


def test_who_has_left_gets_no_place() -> None:
    turns = Turns(2)
    turns.wait("gone")
    turns.wait("there")
    turns.leave("gone")
    turn = turns.begin()
    assert turn is not None
    assert turn.account == "there"
    assert turns.begin() is None
    assert turns.waiting == 0


def test_it_forgets_accounts_that_want_nothing() -> None:
    """Whether others wait at that time or not."""
    turns = Turns(2)
    turns.wait("long")
    assert turns.begin() is not None
    for waits in range(2):
        for _ in range(waits):
            turns.wait("long")  # it waits for its second place for ever: there are two
        for number in range(3_000):
            turns.wait(str(number))
            turn = turns.begin()
            assert turn is not None
            assert turn.account == str(number)
            turns.charge(turn, 1.0)
            turns.end(turn)
        assert len(turns._accounts) <= 1_100


def test_who_joins_takes_no_place_and_is_next() -> None:
    """The first has the place; the others share it, the one with the least time first."""
    turns = Turns(1)
    for account, cost in (("dear", 9.0), ("cheap", 1.0)):
        turns.wait(account)
        assert _done(turns, cost) == account
    for account in ("dear", "cheap", "new"):
        turns.wait(account)
    first = turns.begin()
    assert first is not None
    joined = [turns.join(), turns.join()]
    assert turns.join() is None
    for each in joined:
        assert each is not None
        turns.end(each)
    turns.wait("late")
    assert turns.begin() is None
    turns.end(first)
    assert turns.begin() is not None


@proves("fair turns of the gateway")
def test_the_last_place_is_shared_by_accounts_that_have_none() -> None:
    """Else who has a place already would be in that one too."""
    turns = Turns(2)
    for account in ("slow", "slow", "quick", "other"):
        turns.wait(account)
    first = turns.begin()
    last = turns.begin()
    assert first is not None
    assert last is not None
    assert (first.account, last.account) == ("slow", "quick")
    joined = turns.join()
    assert joined is not None
    assert joined.account == "other"
    assert turns.join() is None
    assert turns.waiting_of("slow") == 1
    turns.end(first)
    again = turns.begin()
    assert again is not None
    assert again.account == "slow"
