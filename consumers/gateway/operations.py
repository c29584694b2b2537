"""The table of calls: method, path, level and what each answers."""

from __future__ import annotations

from dataclasses import dataclass

from consumers.gateway.calls import Handler

API = "/api/v1/accounts/{account}"

#: What every call may answer besides its own.
ALWAYS = {
    400: "something in the request is wrong; the message says what",
    401: "the credentials are not good",
    403: "the key has not the level that the call needs",
    429: "too much at once; come again after Retry-After",
    503: "the database cannot do it now; come again after Retry-After",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query."""

    name: str
    kind: str
    about: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of the API.  ``levels``: the key needs all of these letters."""

    method: str
    path: str
    levels: str
    name: str
    about: str
    handler: Handler
    answers: dict[int, str]
    queries: tuple[Parameter, ...] = ()
    #: The content types of the body; none: it has no body.
    takes: tuple[str, ...] = ()
    gives: str = "application/json"

    @property
    def whole_path(self) -> str:
        """The path with the part that all calls share."""
        return API + self.path
