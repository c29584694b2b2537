"""Events of many accounts in one transaction: for a gateway, so that tenants share a commit.

The database checks the key and the right of each account.  What it leaves out, the account has to
publish in a transaction of its own, which says what was wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock import database
from penstock.database import dialects
from penstock.publishing.columns import Column, packed
from penstock.publishing.packing import packed_by
from penstock.publishing.rows import Row


class AccountTopic(NamedTuple):
    """For whom, by which key, and where something is published."""

    account_id: str
    key_id: str
    topic: str


def is_plain(row: Row) -> bool:
    """Whether an event can go so: it has no delay and waits for nobody."""
    return row.not_before is None and row.dedup_key is None


def publish_for_accounts(
    connection: Any, lines: Sequence[AccountTopic], events: Sequence[tuple[int, Row]]
) -> list[int] | None:
    """Publish plain events, each with the index of its line, in a transaction of their own.

    Returns the indexes of events that are not published; all others are.  None: there are too many
    for one call, and nothing is published.
    """
    numbers, rows = [number for number, _ in events], [row for _, row in events]
    if dialects.of_connection(connection).name == "mysql":
        binds = packed_by(numbers, rows)
        if binds is None:
            return None
        told = [
            {"account": each.account_id, "key_id": each.key_id, "topic": each.topic}
            for each in lines
        ]
        binds["lines"] = json.dumps(told)
    else:
        binds = packed(connection, **_columns(lines, numbers, rows))
    return [place for (place,) in database.call(connection, "publish_for_accounts", **binds)]


def _columns(
    lines: Sequence[AccountTopic], numbers: Sequence[int], rows: Sequence[Row]
) -> dict[str, Column]:
    account_ids, key_ids, topics = zip(*lines, strict=True)
    _, payloads, keys, types, content_types, headers, event_ids, partitions, _, _ = zip(
        *rows, strict=True
    )
    return {
        "accounts": ("text", account_ids),
        "key_ids": ("text", key_ids),
        "topics": ("text", topics),
        "lines": ("int4", [number + 1 for number in numbers]),
        "payloads": ("bytea", payloads),
        "keys": ("text", keys),
        "types": ("text", types),
        "content_types": ("text", content_types),
        "headers": ("text", headers if any(headers) else None),
        "event_ids": ("uuid", event_ids),
        "partitions": ("int4", partitions if set(partitions) != {None} else None),
    }
