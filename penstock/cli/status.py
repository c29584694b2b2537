"""``penstock status``: schema, topics and subscriptions in one look."""

from __future__ import annotations

from typing import Any

from penstock import config, database, migrate, names
from penstock.cli.output import Format, Output, as_dict, say, show, show_json

_LAG = (
    "subscription",
    "topic",
    "partition",
    "position",
    "high_watermark",
    "lag_events",
    "lag_seconds",
    "state",
    "holder",
    "lease_epoch",
)


def status(output: Output = Format.table) -> None:
    """Show the state of the schema, the topics and the subscriptions."""
    with database.connect() as connection:
        pending = [f"{line.version:04d}_{line.name}" for line in migrate.check(connection)]
        migrate.require_usable(connection)
        found: dict[str, Any] = {
            "schema": config.schema_name(),
            "pending": pending,
            "topics": [as_dict(each) for each in names.list_topics(connection)],
            "subscriptions": [
                dict(zip(_LAG, row, strict=True))
                for row in database.call(connection, "subscription_lag", subscription=None)
            ],
        }
    if output is Format.json:
        show_json(found)
        return
    say(f"schema {found['schema']}: {', '.join(pending) or 'up to date'}")
    for title in ("topics", "subscriptions"):
        say(f"\n{title}:")
        show(found[title], output)
