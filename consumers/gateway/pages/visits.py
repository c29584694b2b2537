"""One visit to the page: who asks for what, and what is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import parse_qs

import jinja2

from consumers.gateway.pages.readings import Background, Reading, Readings
from consumers.gateway.pages.sessions import Session
from consumers.gateway.pages.settings import PageSettings
from penstock import database
from penstock.accounts import MasterKeys
from penstock.doctor import Finding
from penstock.upkeep.pages import PageAnswer

T = TypeVar("T")

HTML = "text/html; charset=utf-8"
#: Of a value in an address or a form, so much is read.
LONGEST_VALUE = 1_000
_LONGEST_NUMBER = 20


class Problem(Exception):
    """A visit that is answered with an error; the text says what was wrong."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


@dataclass(slots=True)
class House:
    """What all visits share."""

    settings: PageSettings
    readings: Readings
    findings: Background[list[Finding]]
    masters: MasterKeys | None
    templates: jinja2.Environment
    #: The events that each topic had at earlier readings, for its rate.
    seen: dict[str, tuple[float, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Visit:
    """A request of somebody who has signed in."""

    house: House
    session: Session
    given: Mapping[str, str]

    def text(self, name: str) -> str:
        """A value of the address or the form; '' when it was not given."""
        return self.given.get(name, "").strip()[:LONGEST_VALUE]

    def needed(self, name: str) -> str:
        """The same of one that has to be there."""
        found = self.text(name)
        if not found:
            raise Problem(400, f"{name} is missing")
        return found

    def number(self, name: str, lowest: int = 0, highest: int = 2**62) -> int | None:
        """A whole number; None when it was not given."""
        found = self.text(name)
        if not found:
            return None
        is_number = found.isascii() and found.isdigit() and len(found) <= _LONGEST_NUMBER
        if not is_number or not lowest <= int(found) <= highest:
            raise Problem(400, f"{name} has to be a whole number from {lowest:,} to {highest:,}")
        return int(found)

    def time(self, name: str) -> datetime | None:
        """A time; without a zone it is in UTC."""
        found = self.text(name)
        if not found:
            return None
        try:
            at = datetime.fromisoformat(found)
        except ValueError:
            raise Problem(400, f"{name} is no time: write 2026-01-31 or 2026-01-31T12:00") from None
        return at if at.tzinfo is not None else at.replace(tzinfo=UTC)

    def read(self, name: object, work: Callable[[Any], T], **more: float) -> Reading[T]:
        """What ``work`` returns for a connection; several visits share a reading."""
        return self.house.readings.read(name, work, **more)

    def change(self, work: Callable[[Any], T]) -> T:
        """What ``work`` returns, in a transaction.  Refused where the page may only read."""
        if not self.house.settings.writes:
            raise Problem(403, "this page only reads: start the gateway with --page write")
        return self.house.readings.change(work)

    def look(self, subject: str, work: Callable[[Any], T]) -> T:
        """What ``work`` reads of a payload, in the transaction that records who has looked at it.

        It changes nothing else, so it is allowed where the page only reads.
        """

        def recorded(connection: Any) -> T:
            database.call(connection, "record_look", person=self.session.person, subject=subject)
            return work(connection)

        return self.house.readings.change(recorded)

    def show(self, template: str, title: str, **values: Any) -> PageAnswer:
        """A page."""
        text = self.house.templates.get_template(template).render(
            title=title,
            session=self.session,
            writes=self.house.settings.writes,
            now=datetime.now(UTC),
            asked=self.text,
            **values,
        )
        return PageAnswer(200, text.encode(), HTML)


Handler = Callable[[Visit], PageAnswer]


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A page, or with ``is_write`` what a form does."""

    path: str
    handler: Handler
    is_write: bool = False


def redirect(address: str, headers: Mapping[str, str] | None = None) -> PageAnswer:
    """Go there with GET."""
    return PageAnswer(303, headers={"Location": address, **(headers or {})})


def values_of(text: str) -> dict[str, str]:
    """The values of a query or a form."""
    try:
        found = parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=50)
    except ValueError:
        raise Problem(400, "the address or the form cannot be read") from None
    if any("\x00" in value for values in found.values() for value in values):
        raise Problem(400, "a value has a NUL character")
    return {name: values[-1] for name, values in found.items()}
