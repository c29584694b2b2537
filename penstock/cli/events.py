"""``penstock publish`` and ``penstock fetch``."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import database
from penstock.cli.output import Format, Output, show
from penstock.cli.topics import Topic
from penstock.errors import InvalidArgument


def publish(
    topic: Topic,
    payload: Annotated[str | None, typer.Argument(help="Text, or - for standard input.")] = None,
    *,
    file: Annotated[Path | None, typer.Option(help="Take the payload from a file.")] = None,
    key: Annotated[str | None, typer.Option()] = None,
    type_: Annotated[str, typer.Option("--type")] = "",
    content_type: Annotated[str, typer.Option()] = "application/octet-stream",
    header: Annotated[
        list[str] | None, typer.Option(help="name=value, where value is JSON or else text.")
    ] = None,
    event_id: Annotated[uuid.UUID | None, typer.Option()] = None,
    partition: Annotated[int | None, typer.Option()] = None,
) -> None:
    """Publish one event, in a transaction of its own; writes its event id."""
    from penstock.publish import publish as publish_event

    data = _payload(payload, file)
    headers = dict(_header(each) for each in header) if header else None
    with database.connect() as connection, connection.transaction():
        new_id = publish_event(
            connection,
            topic,
            data,
            key=key,
            type=type_,
            content_type=content_type,
            headers=headers,
            event_id=event_id,
            partition=partition,
        )
    sys.stdout.write(f"{new_id}\n")


def fetch(
    topic: Topic,
    partition: Annotated[int, typer.Option("--partition")] = 0,
    from_sequence: Annotated[int, typer.Option("--from", help="The first sequence.")] = 1,
    max_events: Annotated[int, typer.Option("--max", min=1)] = 20,
    output: Output = Format.table,
) -> None:
    """Read events of one partition by sequence, up to its high watermark."""
    from penstock import log

    with database.connect() as connection:
        show(log.fetch(connection, topic, partition, from_sequence, max_events), output)


def _payload(payload: str | None, file: Path | None) -> bytes:
    if (payload is None) == (file is None):
        raise InvalidArgument("there is no single payload", hint="give a text, or - , or --file")
    if file is not None:
        try:
            return file.read_bytes()
        except OSError as error:
            raise InvalidArgument(f"cannot read {file}: {error.strerror}") from None
    return sys.stdin.buffer.read() if payload == "-" else str(payload).encode()


def _header(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise InvalidArgument(f"the header {text!r} is not name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
