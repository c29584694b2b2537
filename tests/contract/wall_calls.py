"""Calls that control a subscription, and lists of what subscriptions do, for the tests of walls."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from penstock import subscriptions
from penstock.subscriptions import stream
from tests.contract.text_kit import FUNCTIONS, in_sql

Call = Callable[[Any, str], object]


def member(subscription: str) -> stream.Membership:
    """Somebody who never joined."""
    return stream.Membership(subscription, "spy", uuid.UUID(int=1), 1, 3)


#: Functions of a topic that only SQL calls.
IN_SQL: dict[str, Call] = {name: in_sql(name) for name in FUNCTIONS}

#: Each refuses a hidden subscription as it refuses one that is not there.
STEERING: dict[str, Call] = {
    "reset": lambda own, name: stream.reset(own, name, "latest"),
    "pause": subscriptions.pause,
    "resume": subscriptions.resume,
    "describe_subscription": subscriptions.describe_subscription,
    "report_error": lambda own, name: stream.report_error(own, member(name), "x"),
}

#: Each leaves out what is hidden.
LISTS: tuple[Callable[[Any], object], ...] = (
    subscriptions.list_subscriptions,
    subscriptions.members,
    subscriptions.leased_cursors,
    subscriptions.unleased_cursors,
    subscriptions.statistics,
)
