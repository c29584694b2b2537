"""``penstock dead-letter``."""

from __future__ import annotations

import enum
import json
from typing import Annotated, Any

import typer

from penstock import database
from penstock.cli import letter_work
from penstock.cli.output import Format, Output, say, show, show_json
from penstock.cli.transactions import own_transaction
from penstock.errors import InvalidArgument
from penstock.subscriptions import dead_letters, forwarding
from penstock.subscriptions.dead_letters import DeadLetter, WholeLetter

app = typer.Typer(
    help="Events that a subscription has given up: look at them, hand them out again, drop them.",
    no_args_is_help=True,
)

_PAGE = 1_000

Ids = Annotated[list[int] | None, typer.Argument(help="Ids as `list` shows them.")]
OfTopic = Annotated[str | None, typer.Option("--topic", help="Only of this topic.")]
OfKey = Annotated[str | None, typer.Option("--key", help="Only of this key.")]
OfType = Annotated[str | None, typer.Option("--type", help="Only of this type.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Keep = Annotated[
    bool, typer.Option("--keep-deliveries", help="A queue goes on counting its deliveries.")
]


class Payload(enum.StrEnum):
    """How a payload is shown."""

    text = "text"
    json = "json"
    hex = "hex"


@app.command("list")
def list_(
    subscription: str,
    *,
    topic: OfTopic = None,
    key: OfKey = None,
    type_: OfType = None,
    state: Annotated[str | None, typer.Option(help="dead, parked or redriven")] = None,
    before: Annotated[int | None, typer.Option(help="The next page: older than this id.")] = None,
    max_rows: Annotated[
        int, typer.Option("--max", min=1, max=10_000, help="The most letters.")
    ] = 100,
    output: Output = Format.table,
) -> None:
    """Show dead letters without their payloads, newest first."""
    with database.connect() as connection:
        found = dead_letters.dead_letters(
            connection,
            subscription,
            max_rows,
            topic=topic,
            key=key,
            type=type_,
            state=state,
            before_id=before,
        )
    show(found, output)


@app.command("show")
def show_one(
    subscription: str,
    letter_id: Annotated[int, typer.Argument(metavar="ID")],
    payload: Annotated[
        Payload, typer.Option(help="How to show it; what is not text or JSON is shown in hex.")
    ] = Payload.text,
    limit: Annotated[int, typer.Option(min=0, help="At most so many bytes of it.")] = 10_000,
    output: Output = Format.table,
) -> None:
    """Show one dead letter with its headers and payload."""
    with database.connect() as connection:
        found = dead_letters.dead_letter(connection, subscription, letter_id)
    if found is None:
        raise InvalidArgument(
            f"subscription {subscription!r} has no dead letter {letter_id}",
            hint="it was redriven and handled, or dropped; see penstock dead-letter list",
        )
    fields = _fields(found, payload, limit)
    if output is Format.json:
        show_json(fields)
    else:
        show([{"field": name, "value": value} for name, value in fields.items()], output)


app.command("tasks")(letter_work.tasks)


@app.command()
def redrive(
    subscription: str,
    ids: Ids = None,
    *,
    topic: OfTopic = None,
    key: OfKey = None,
    type_: OfType = None,
    every: All = False,
    keep_deliveries: Keep = False,
    output: Output = Format.table,
) -> None:
    """Hand dead letters out again; of a parked key all its events, in order."""
    with own_transaction() as connection:
        wanted = {"topic": topic, "key": key, "type": type_}
        chosen = _chosen(connection, subscription, ids, wanted, every=every)
        count = dead_letters.redrive(
            connection, subscription, chosen, keep_deliveries=keep_deliveries
        )
    _answer({"subscription": subscription, "redriven": count}, output)


@app.command()
def forward(
    subscription: str,
    to: Annotated[str | None, typer.Option("--to", help="The topic: namespace/path/topic.")] = None,
    stop: Annotated[bool, typer.Option("--stop", help="Forward none from now on.")] = False,
    output: Output = Format.table,
) -> None:
    """Publish each event that a subscription gives up to a topic too."""
    if (to is None) != stop:
        raise InvalidArgument(
            "it is not clear where dead letters go", hint="give --to TOPIC, or --stop"
        )
    with own_transaction() as connection:
        changed = forwarding.set_dead_letters_to(connection, subscription, to)
    if output is Format.json:
        said = {"subscription": subscription, "dead_letters_to": to, "changed": changed}
        show_json(said)
    else:
        where = "are forwarded no more" if to is None else f"go on to {to}"
        say(f"subscription {subscription}: dead letters {where}{'' if changed else ', as before'}")


@app.command()
def move(
    queue: Annotated[str, typer.Argument(help="A queue that reads forwarded dead letters.")],
    to: Annotated[
        str | None,
        typer.Option("--to", help="Publish them to this topic; else each goes back home."),
    ] = None,
    max_events: Annotated[
        int, typer.Option("--max", min=1, max=1_000_000, help="The most events.")
    ] = 1_000,
    keep_deliveries: Keep = False,
    output: Output = Format.table,
) -> None:
    """Take forwarded dead letters back to the subscriptions that gave them up, or elsewhere."""
    with database.connect() as connection:
        done = forwarding.move_all(
            connection, queue, max_events, to=to, keep_deliveries=keep_deliveries
        )
    if output is Format.json:
        said = {"queue": queue, "moved": done.moved, "left": done.left}
        show_json(said | {"reasons": list(done.reasons)})
    else:
        left = f", {done.left} left" if done.left else ""
        say("\n".join([f"queue {queue}: {done.moved} moved{left}", *done.reasons]))


@app.command()
def drop(
    subscription: str,
    ids: Ids = None,
    *,
    topic: OfTopic = None,
    key: OfKey = None,
    type_: OfType = None,
    every: All = False,
    yes: Annotated[bool, typer.Option("--yes", help="Their payloads are lost for good.")] = False,
    output: Output = Format.table,
) -> None:
    """Throw dead letters away; a record of each stays, without its payload."""
    if not yes:
        raise InvalidArgument("drop deletes payloads for good", hint="add --yes if you mean it")
    with own_transaction() as connection:
        wanted = {"topic": topic, "key": key, "type": type_}
        chosen = _chosen(connection, subscription, ids, wanted, every=every)
        count = dead_letters.drop(connection, subscription, chosen)
    _answer({"subscription": subscription, "dropped": count}, output)


def _chosen(
    connection: Any,
    subscription: str,
    ids: list[int] | None,
    wanted: dict[str, str | None],
    *,
    every: bool,
) -> list[int]:
    """The given ids, or the ids that a filter finds.  Exactly one of the two is allowed."""
    is_filter = every or any(each is not None for each in wanted.values())
    if bool(ids) == is_filter:
        raise InvalidArgument(
            "it is not clear which dead letters are meant",
            hint="give ids, or a filter (--topic, --key, --type), or --all",
        )
    if ids:
        return ids
    found: list[int] = []
    page: list[DeadLetter] | None = None
    while page is None or len(page) == _PAGE:
        page = dead_letters.dead_letters(
            connection,
            subscription,
            _PAGE,
            before_id=page[-1].id if page else None,
            **wanted,
        )
        found += [each.id for each in page]
    return found


def _answer(done: dict[str, Any], output: Format) -> None:
    if output is Format.json:
        show_json(done)
    else:
        verb = list(done)[-1]
        say(f"subscription {done['subscription']}: {done[verb]} {verb}")


def _fields(found: WholeLetter, payload: Payload, limit: int) -> dict[str, Any]:
    letter = found.letter
    fields: dict[str, Any] = {name: getattr(letter, name) for name in DeadLetter.__slots__}
    fields["headers"] = found.headers
    kind, shown = _shown(found.payload, payload, limit)
    fields["payload" if kind is Payload.text else f"payload_{kind}"] = shown
    if len(found.payload) > limit:
        fields["payload_cut_at"] = limit
    return fields


def _shown(payload: bytes, wanted: Payload, limit: int) -> tuple[Payload, Any]:
    cut = payload[:limit]
    if wanted is Payload.json and len(payload) <= limit:
        try:
            return wanted, json.loads(payload)
        except (ValueError, RecursionError):
            return Payload.hex, cut.hex()
    if wanted is Payload.text:
        try:
            # The cut may have split a character.
            return wanted, cut.decode(errors="strict" if cut == payload else "ignore")
        except UnicodeDecodeError:
            pass
    return Payload.hex, cut.hex()
