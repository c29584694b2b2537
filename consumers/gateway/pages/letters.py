"""Dead letters: filtered by the address, one of them, and what is done with all that match."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from consumers.gateway.pages.readings import MOST_COUNTED, Budget, Reading
from consumers.gateway.pages.showing import as_shown, link
from consumers.gateway.pages.visits import PageRoute, Problem, Visit, redirect
from penstock.errors import InvalidArgument
from penstock.subscriptions import dead_letters, letter_tasks
from penstock.subscriptions.dead_letters import DeadLetter, WholeLetter
from penstock.subscriptions.letter_tasks import LetterFilter
from penstock.upkeep.pages import PageAnswer

MOST_SHOWN = 50
_STEP = 1_000
_LONGEST_REASON = 500
_FIELDS = ("topic", "key", "type", "state", "reason")


@dataclass(frozen=True, slots=True)
class FoundLetters:
    """Letters that match, of so many that were looked at; ``next`` is where to go on."""

    letters: list[DeadLetter]
    looked: int
    next: int | None


def letters(visit: Visit) -> PageAnswer:
    """Subscriptions with dead letters, or those of one, as the address says."""
    name = visit.text("subscription")
    if not name:
        counts = visit.read("letters", dead_letters.counts)
        return visit.show("letter_counts.html", "Dead letters", counts=counts)
    wanted, before = _wanted(visit), visit.number("before", 1)
    budget = visit.house.readings.budget()
    found = visit.read(
        ("letters", name, wanted, before),
        lambda c: search(c, budget, name, wanted, before=before, most=MOST_SHOWN),
    )
    return visit.show(
        "letters.html",
        f"Dead letters of {name}",
        name=name,
        given=_given(visit),
        found=found,
        states=dead_letters.STATES,
    )


def search(
    connection: Any,
    budget: Budget,
    name: str,
    wanted: LetterFilter,
    *,
    before: int | None,
    most: int,
) -> FoundLetters:
    """The newest letters that match, at most ``most``, of those that there is time to look at."""
    found: list[DeadLetter] = []
    looked = 0
    step = most + 1 if wanted == LetterFilter() else _STEP
    while looked < MOST_COUNTED and not budget.is_over():
        page = [*letter_tasks.matching(connection, name, wanted, step, before)]
        for letter, matches in page:
            if matches and len(found) == most:
                return FoundLetters(found, looked, before)
            looked, before = looked + 1, letter.id
            if matches:
                found.append(letter)
        if len(page) < step:
            return FoundLetters(found, looked, None)
    return FoundLetters(found, looked, before)


def confirm(visit: Visit) -> PageAnswer:
    """How many match, before anything is done with them."""
    name, action, wanted = visit.needed("subscription"), visit.needed("action"), _wanted(visit)
    budget = visit.house.readings.budget()

    def count(connection: Any) -> tuple[int, int, bool]:
        found = search(connection, budget, name, wanted, before=None, most=MOST_COUNTED)
        return len(found.letters), found.looked, found.next is not None

    return visit.show(
        "letters_confirm.html",
        f"{action.capitalize()} dead letters of {name}",
        name=name,
        action=action,
        given=_given(visit),
        found=visit.read(("matching", name, wanted), count),
    )


def act(visit: Visit) -> PageAnswer:
    """Ask the sweep to do it with all that match."""
    name, action, wanted = visit.needed("subscription"), visit.needed("action"), _wanted(visit)
    reason = f"{visit.needed('why')[:_LONGEST_REASON]} ({visit.session.person})"
    visit.change(lambda c: letter_tasks.request(c, name, action, wanted, reason))
    return redirect(link("/tasks", subscription=name))


def tasks(visit: Visit) -> PageAnswer:
    """What the sweep is asked to do, and how far it is."""
    name = visit.text("subscription") or None
    found = visit.read(("tasks", name), lambda c: letter_tasks.tasks(c, name, max_rows=MOST_SHOWN))
    return visit.show("tasks.html", "Tasks for dead letters", found=found)


def cancel(visit: Visit) -> PageAnswer:
    """End a task where it stands."""
    task = visit.number("task", 1)
    if task is None:
        raise Problem(400, "task is missing")
    why = f"cancelled by {visit.session.person}"
    visit.change(lambda c: letter_tasks.cancel(c, task, why))
    return redirect("/tasks")


def letter(visit: Visit) -> PageAnswer:
    """One letter, without its payload."""
    name, letter_id = _one(visit)
    found = visit.read(("letter", name, letter_id), lambda c: _whole(c, name, letter_id))
    return _shown(visit, name, letter_id, found, None)


def letter_payload(visit: Visit) -> PageAnswer:
    """The same with its payload; the look is recorded."""
    name, letter_id = _one(visit)
    whole = visit.look(f"dead letter {letter_id} of {name}", lambda c: _whole(c, name, letter_id))
    return _shown(visit, name, letter_id, Reading(whole, datetime.now(UTC)), whole.payload)


def _shown(
    visit: Visit, name: str, letter_id: int, found: Reading[WholeLetter], payload: bytes | None
) -> PageAnswer:
    return visit.show(
        "letter.html",
        f"Dead letter {letter_id}",
        name=name,
        found=found,
        payload=None if payload is None else as_shown(payload),
    )


def letter_act(visit: Visit) -> PageAnswer:
    """Redrive or drop one letter."""
    name, letter_id = _one(visit)
    acts = {"redrive": dead_letters.redrive, "drop": dead_letters.drop}
    if visit.text("action") not in acts:
        raise Problem(400, "the action is redrive or drop")
    visit.change(lambda c: acts[visit.text("action")](c, name, [letter_id]))
    return redirect(link("/letters", subscription=name))


def _one(visit: Visit) -> tuple[str, int]:
    letter_id = visit.number("id", 1)
    if letter_id is None:
        raise Problem(400, "id is missing")
    return visit.needed("subscription"), letter_id


def _whole(connection: Any, name: str, letter_id: int) -> WholeLetter:
    found = dead_letters.dead_letter(connection, name, letter_id)
    if found is None:
        raise Problem(404, "there is no such letter: it was redriven and handled, or dropped")
    return found


def _wanted(visit: Visit) -> LetterFilter:
    try:
        return LetterFilter(
            **{name: visit.text(name) for name in _FIELDS},
            since=visit.time("since"),
            until=visit.time("until"),
        )
    except InvalidArgument as error:
        raise Problem(400, str(error)) from None


def _given(visit: Visit) -> dict[str, str]:
    """The filter as it stands in the address."""
    return {name: visit.text(name) for name in (*_FIELDS, "since", "until")}


ROUTES = (
    PageRoute("/letters", letters),
    PageRoute("/letters/act", confirm),
    PageRoute("/letters/act", act, is_write=True),
    PageRoute("/letter", letter),
    PageRoute("/letter", letter_payload, is_write=True),
    PageRoute("/letter/act", letter_act, is_write=True),
    PageRoute("/tasks", tasks),
    PageRoute("/tasks/cancel", cancel, is_write=True),
)
