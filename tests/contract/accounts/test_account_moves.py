"""Moves of letters that an account has asked for: the sweep does them, by the account's rights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import accounts, log
from penstock.errors import NotRedriven
from penstock.subscriptions import dead_letters, forwarding, letter_moves, queue
from penstock.subscriptions.letter_moves import LetterMove
from tests.contract.accounts.kit import Account, account, as_account, gateway
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.contract.tenants import Tenants, tenants_of
from tests.kit import queue as kit
from tests.kit.proof import proves

DEAD, HOSPITAL = "shop/dead", "shop/hospital"
#: The sweep sees everything, and nobody else is asked.
ASKED: Guard = {
    "postgres": ("letters_hidden", "(asked_by IS NOT NULL AND", "(false AND"),
    "mysql": ("letters_hidden", "ELSEIF asked_by IS NULL THEN", "ELSEIF TRUE THEN"),
}
ACKNOWLEDGED: Guard = {
    "postgres": (
        "next_letter_move",
        "NOT principal_may(m.requested_by, o, 'acknowledge')",
        "false",
    ),
    "mysql": (
        "next_letter_move",
        "NOT principal_may(asked_by, r.topic_id, 'acknowledge')",
        "FALSE",
    ),
}


@pytest.fixture
def tenants(db: ContractDatabase) -> Iterator[Tenants]:
    """The roles, and an account beside the one that acts."""
    with tenants_of(db) as found:
        found.install()
        account(found.owner, "bank")
        yield found


@pytest.fixture
def shop(tenants: Tenants) -> Account:
    made = account(tenants.owner, "shop")
    penstock.create_topic(tenants.owner, DEAD)
    queue.subscribe(tenants.owner, HOSPITAL, [DEAD])
    return made


def _buried(owner: Any, of: str) -> None:
    """The only event of a queue is a letter, and its copy lies in the shop's topic."""
    queue.configure(owner, of, max_failures=1)
    forwarding.set_dead_letters_to(owner, of, DEAD)
    (found,) = _received(owner, of)
    assert queue.reject(owner, of, [found.receipt], reason="no", delay_seconds=0)
    log.sequence(owner)


def _received(owner: Any, name: str) -> list[queue.Delivery]:
    kit.pass_time_of(owner, "queue_turns", 1)
    return queue.receive(owner, name)


def _moved(tenants: Tenants, shop: Account, name: str = HOSPITAL) -> LetterMove:
    """What became of a move that the account has asked for."""
    with as_account(tenants, gateway(tenants), shop) as own:
        letter_moves.start(own, name)
    kit.pass_time_of(tenants.owner, "queue_turns", 1)
    letter_moves.work(tenants.owner)
    return letter_moves.moves(tenants.owner, name)[0]


@proves("a move of letters")
def test_a_move_takes_no_letter_into_anothers_queue(tenants: Tenants, shop: Account) -> None:
    """As a direct move is refused.  Its own letters go home.  Guard: letters_hidden."""
    owner = tenants.owner
    _buried(owner, "shop/orders")
    found = _moved(tenants, shop)
    assert (found.state, found.moved, len(_received(owner, "shop/orders"))) == ("done", 1, 1)
    _buried(owner, "bank/orders")
    found = _moved(tenants, shop)
    assert (found.state, found.problem, found.moved) == ("failed", letter_moves.NO_SOURCE, 0)
    assert len(dead_letters.dead_letters(owner, "bank/orders")) == 1
    assert _received(owner, "bank/orders") == []
    (copy,) = _received(owner, HOSPITAL)
    with as_account(tenants, gateway(tenants), shop) as own, pytest.raises(NotRedriven):
        forwarding.move(own, HOSPITAL, [copy.receipt])


@proves("a move of letters", guard="letters_hidden")
def test_without_asking_the_account_it_goes_round_the_wall(
    db: ContractDatabase, tenants: Tenants, shop: Account
) -> None:
    """Mutant."""
    without(db, ASKED)
    _buried(tenants.owner, "bank/orders")
    assert _moved(tenants, shop).state == "done"
    assert len(_received(tenants.owner, "bank/orders")) == 1


def _after_its_loss(tenants: Tenants, shop: Account) -> LetterMove:
    """The account may no more take events out of the queue when the sweep comes."""
    owner = tenants.owner
    accounts.grant_account(owner, "shop", "bank", "consume")
    with as_account(tenants, gateway(tenants), shop) as own:
        queue.subscribe(own, "shop/theirs", ["bank/orders"])
        letter_moves.start(own, "shop/theirs")
    accounts.revoke_account(owner, "shop", "bank", "consume", unrestrict=True)
    letter_moves.work(owner)
    return letter_moves.moves(owner, "shop/theirs")[0]


def test_a_queue_that_the_account_lost_is_left_alone(tenants: Tenants, shop: Account) -> None:
    """Guard: principal_may of next_letter_move."""
    found = _after_its_loss(tenants, shop)
    assert (found.state, "may no longer acknowledge" in str(found.problem)) == ("failed", True)


@proves("a move of letters", guard="principal_may of next_letter_move")
def test_without_that_the_sweep_goes_on(
    db: ContractDatabase, tenants: Tenants, shop: Account
) -> None:
    """Mutant."""
    without(db, ACKNOWLEDGED)
    assert _after_its_loss(tenants, shop).problem in {None, letter_moves.NO_SOURCE}
