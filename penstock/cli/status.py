"""``penstock status``: schema, topics, subscriptions and their consumers in one look."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import typer

from penstock import database, subscriptions
from penstock.cli.output import Format, Output, as_dict, say, show, show_json
from penstock.cli.queues import counted_queues
from penstock.database import config, migrate
from penstock.doctor.waiting import told
from penstock.errors import PermissionDenied
from penstock.log.sequencer_state import sequencer_state
from penstock.subscriptions import dead_letters
from penstock.topics import names
from penstock.topics.retention import retention_limits

#: In the order in which they are shown.
_TITLES = (
    "topics", "subscriptions", "consumers", "statistics", "queues", "dead_letters", "skips",
    "limits",
)  # fmt: skip

#: What keeps a subscription from missing more.
_SKIPS_MEND = (
    "A subscription with skips gets an error until it reads them from the archive (archive=), or "
    "goes on with what is left (penstock subscription seek NAME TOPIC --to earliest --yes). So that"
    " it misses no more: a faster consumer, or more of max_lag_seconds (reason max_lag) or of the "
    "retention's max_bytes (reason max_bytes)."
)


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
        sequencer = sequencer_state(connection)
        found |= {
            "sequencer": as_dict(sequencer),
            "subscriptions": _rows(subscriptions.lag(connection, subscription)),
            "consumers": _rows(subscriptions.members(connection, subscription)),
            "statistics": _rows(subscriptions.statistics(connection, subscription)),
        }
        found["queues"] = counted_queues(connection, subscription)
        try:
            found["dead_letters"] = _rows(dead_letters.counts(connection, subscription))
            skips = subscriptions.skips(connection, subscription)
            found["skips"] = _rows([each for each in skips if each.unread])
        except PermissionDenied:  # the roles are of an older version
            say("dead letters and skips are not told to this login. run: penstock rights install")
        if subscription is None:
            with suppress(PermissionDenied):  # a login that only consumes
                found["limits"] = _rows(retention_limits(connection))
    if output is Format.json:
        show_json(found)
        return
    say(f"schema {found['schema']}: {', '.join(pending) or 'up to date'}")
    say(f"sequencer: {told(sequencer)}")
    for title in _TITLES:
        if title in found:
            say(f"\n{title.replace('_', ' ')}:")
            show(found[title], output)
    if found.get("skips"):
        say(_SKIPS_MEND)


def _rows(records: list[Any]) -> list[dict[str, Any]]:
    return [as_dict(each) for each in records]
