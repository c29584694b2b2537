"""Labels of a queue: what a program keeps about it that the queue itself does not know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock import database
from penstock.errors import InvalidArgument
from penstock.records import as_time


@dataclass(frozen=True, slots=True)
class QueueLabels:
    """What a program keeps about a queue, since when, and when it was changed last."""

    labels: Mapping[str, Any]
    created_at: datetime | None
    changed_at: datetime | None


def label(connection: Any, subscription: str, labels: Mapping[str, Any]) -> None:
    """Keep a JSON object about a queue, in place of the one before: of 65,536 bytes at most."""
    try:
        given = json.dumps(labels, allow_nan=False)
    except (TypeError, ValueError):
        raise InvalidArgument(
            "the labels of a queue are no JSON", hint="use texts, numbers, lists and objects"
        ) from None
    database.call(connection, "label_queue", subscription=subscription, labels=given)


def labels_of(connection: Any, subscription: str) -> QueueLabels:
    """What is kept about a queue."""
    rows = database.call(connection, "labels_of_queue", subscription=subscription)
    if not rows:
        return QueueLabels({}, None, None)
    labels, created_at, changed_at = rows[0]
    found = json.loads(labels) if isinstance(labels, str | bytes) else labels
    return QueueLabels(found, as_time(created_at), as_time(changed_at))
