"""How long calls of the database take, for a program that wants to know.

Nobody looks at the clock until :data:`observer` is set; ``penstock.upkeep.operations`` does that.
"""

from __future__ import annotations

from collections.abc import Callable

#: The operation of each statement whose time is told: what applications and consumers wait for.
OPERATIONS = {
    "publish": "publish",
    "publish_batch": "publish_batch",
    "publish_columns": "publish_batch",  # the short way of a batch on PostgreSQL
    "publish_packed": "publish_batch",  # that on MySQL
    "publish_for_accounts": "publish_batch",
    "poll": "poll",
    "commit": "commit",
}

#: Gets the name of the operation and its seconds, also of one that has failed.
observer: Callable[[str, float], None] | None = None
