"""Claims of sends for some minutes, so that a send that is repeated is no second event.

The dedup keys of a topic are for days, and those of all publishers.  These claims are for a door
that keeps its own promise: SQS forgets after five minutes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from penstock import database
from penstock.records import as_uuid


class Send(NamedTuple):
    """An event that is to be published, and the text that no second one may have meanwhile."""

    topic: str
    send_key: str
    event_id: UUID


def claim(connection: Any, sends: Sequence[Send], seconds: float) -> list[UUID | None]:
    """Claim the text of each send, in the transaction that publishes the events next.

    Returns for each None when it is to be published, else the id of the event that has the text.
    """
    if not sends:
        return []
    ((originals,),) = database.call(connection, "claim_sends", sends=_given(sends), seconds=seconds)
    return [None if each is None else as_uuid(each) for each in originals]


def release(connection: Any, sends: Sequence[Send]) -> None:
    """Give claims of this transaction back, because their events were refused.

    On PostgreSQL the savepoint does it in which the events were refused.
    """
    if sends and database.dialect_of(connection) == "mysql":
        database.call(connection, "release_sends", sends=_given(sends))


def _given(sends: Sequence[Send]) -> str:
    return json.dumps([each._asdict() for each in sends], default=str)
