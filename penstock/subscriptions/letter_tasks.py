"""Redriving or dropping all dead letters that match: the sweep does it, bit by bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from penstock import database
from penstock.database import sessions
from penstock.errors import InvalidArgument, NotRedriven, PenstockError
from penstock.records import as_time
from penstock.subscriptions import dead_letters
from penstock.subscriptions.dead_letters import STATES, DeadLetter

ACTIONS = ("redrive", "drop")


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Which dead letters; what is None or empty is not asked.

    ``reason``: a part of the reason, in small or large letters.  ``since`` and ``until``: when it
    died.
    """

    topic: str = ""
    key: str = ""
    type: str = ""
    state: str = ""
    reason: str = ""
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        """Refuse a state that there is not."""
        if self.state and self.state not in STATES:
            raise InvalidArgument(
                f"there is no state {self.state!r}", hint=f"use {', '.join(STATES)}"
            )

    def matches(self, letter: DeadLetter) -> bool:
        """Whether a letter is one of these."""
        return (
            all(
                not wanted or getattr(letter, name) == wanted
                for name, wanted in (
                    ("topic", self.topic),
                    ("key", self.key),
                    ("type", self.type),
                    ("state", self.state),
                )
            )
            and self.reason.casefold() in letter.reason.casefold()
            and (self.since is None or letter.died_at >= self.since)
            and (self.until is None or letter.died_at < self.until)
        )

    def to_text(self) -> str:
        """As it is stored."""
        given = {name: value for name, value in asdict(self).items() if value}
        return json.dumps(given, default=datetime.isoformat)

    @classmethod
    def from_text(cls, text: str) -> LetterFilter:
        """What :meth:`to_text` has written."""
        try:
            given = json.loads(text)
            for name in ("since", "until"):
                if name in given:
                    given[name] = as_time(datetime.fromisoformat(given[name]))
            return cls(**given)
        except (ValueError, TypeError):
            raise InvalidArgument("this is no filter of dead letters") from None


@dataclass(frozen=True, slots=True)
class LetterTask:
    """What is done with all that match; ``looked`` and ``changed`` count letters.

    ``next_below``: the sweep goes on with the newest letter below this id.
    """

    id: int
    subscription: str
    action: str
    filter: str
    reason: str
    requested_by: str
    requested_at: datetime
    begun_below: int
    next_below: int
    looked: int
    changed: int
    ended_at: datetime | None
    problem: str | None


def matching(
    connection: Any,
    subscription: str,
    wanted: LetterFilter,
    most: int,
    before_id: int | None = None,
) -> Iterator[tuple[DeadLetter, bool]]:
    """The newest ``most`` letters before an id, each with whether it matches.

    The filter is compared here, so that what is read is bounded whatever it is.
    """
    for letter in dead_letters.dead_letters(connection, subscription, most, before_id=before_id):
        yield letter, wanted.matches(letter)


def request(
    connection: Any, subscription: str, action: str, wanted: LetterFilter, reason: str
) -> int:
    """Ask the sweep to redrive or drop all that match and are there now.  Returns the task's id."""
    if action not in ACTIONS:
        raise InvalidArgument(f"there is no action {action!r}", hint=f"use {', '.join(ACTIONS)}")
    binds = {"action": action, "filter": wanted.to_text(), "reason": reason}
    rows = database.call(connection, "request_letter_task", subscription=subscription, **binds)
    return int(rows[0][0])


def tasks(
    connection: Any,
    subscription: str | None = None,
    *,
    only_open: bool = False,
    max_rows: int = 100,
) -> list[LetterTask]:
    """Tasks, the newest first; with ``only_open`` those that are not over, the oldest first."""
    binds = {"subscription": subscription, "only_open": only_open, "max_rows": max_rows}
    return [LetterTask(*row) for row in database.call(connection, "letter_tasks_of", **binds)]


def cancel(connection: Any, task_id: int, why: str) -> bool:
    """End a task where it stands; what is done stays done.  Returns whether it was open."""
    return _note(connection, task_id, is_over=True, problem=why)


def work(connection: Any, max_rows: int) -> int:
    """Do a bit of the oldest open task: look at ``max_rows`` letters.  Returns how many it changed.

    Letters and task change in one transaction.  So what two sweeps do at once is done once.
    """
    present = tasks(connection, only_open=True, max_rows=1)
    if not present:
        return 0
    (task,) = present
    driver = database.driver_connection(connection)
    own = sessions.of_connection(driver)
    if not own.commits_by_itself(driver):
        return _work(connection, task, max_rows)
    try:
        with own.transaction(driver):
            return _work(connection, task, max_rows)
    except NotRedriven:
        return 0
    except PenstockError as error:
        if database.is_passing(error):
            raise
        cancel(connection, task.id, error.message)
        return 0


def _work(connection: Any, task: LetterTask, max_rows: int) -> int:
    wanted = LetterFilter.from_text(task.filter)
    found = [*matching(connection, task.subscription, wanted, max_rows, task.next_below)]
    chosen = [letter.id for letter, is_wanted in found if is_wanted]
    changed = 0
    if chosen:
        act = dead_letters.redrive if task.action == "redrive" else dead_letters.drop
        changed = act(connection, task.subscription, chosen)
    if not _note(
        connection,
        task.id,
        stood_below=task.next_below,
        next_below=found[-1][0].id if found else None,
        looked=len(found),
        changed=changed,
        is_over=len(found) < max_rows,
    ):
        raise NotRedriven("another sweep has done this bit of the task, or it was cancelled")
    return changed


def _note(connection: Any, task_id: int, *, is_over: bool, **more: Any) -> bool:
    binds = {"stood_below": None, "next_below": None, "looked": 0, "changed": 0, "problem": None}
    rows = database.call(
        connection, "note_letter_task", task_id=task_id, is_over=is_over, **(binds | more)
    )
    return bool(rows[0][0])
