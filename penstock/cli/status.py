"""``penstock status``: schema, topics, subscriptions and their consumers in one look."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock import database, subscriptions
from penstock.cli.output import Format, Output, as_dict, say, show, show_json
from penstock.database import config, migrate
from penstock.topics import names


def status(
    subscription: Annotated[
        str | None, typer.Argument(help="Only this one, with its consumers.")
    ] = None,
    output: Output = Format.table,
) -> None:
    """Show the state of the schema, the topics, the subscriptions and their consumers."""
    with database.connect() as connection:
        pending = [f"{line.version:04d}_{line.name}" for line in migrate.check(connection)]
        migrate.require_usable(connection)
        found: dict[str, Any] = {"schema": config.schema_name(), "pending": pending}
        if subscription is None:
            found["topics"] = _rows(names.list_topics(connection))
        else:
            subscriptions.describe_subscription(connection, subscription)  # or it is not there
        found |= {
            "subscriptions": _rows(subscriptions.lag(connection, subscription)),
            "consumers": _rows(subscriptions.members(connection, subscription)),
            "statistics": _rows(subscriptions.statistics(connection, subscription)),
        }
    if output is Format.json:
        show_json(found)
        return
    say(f"schema {found['schema']}: {', '.join(pending) or 'up to date'}")
    for title in ("topics", "subscriptions", "consumers", "statistics"):
        if title in found:
            say(f"\n{title}:")
            show(found[title], output)


def _rows(records: list[Any]) -> list[dict[str, Any]]:
    return [as_dict(each) for each in records]
