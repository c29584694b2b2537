"""What can go wrong with a handler, as the consumer tells it."""

from __future__ import annotations

from penstock.errors import PenstockError


class HandlerFailed(PenstockError):
    """A handler raised, and this run does not wait for the next attempt."""


class HandlerTimedOut(PenstockError):
    """A handler took longer than ``handler_seconds``; its event is tried again, or given up."""


class OutlivedLease(PenstockError):
    """The server ended a transaction that would have outlived its lease; the events come again."""


class HandlerRolledBack(PenstockError):
    """A handler committed the position and rolled its transaction back; the events come again."""
