"""The options that the commands of events share, over the database and through a gateway."""

from __future__ import annotations

import sys
import uuid
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import Lines, say, show_line

Payload = Annotated[str | None, typer.Argument(help="Text, or - for standard input.")]
PayloadFile = Annotated[Path | None, typer.Option(help="Take the payload from a file.")]
Key = Annotated[str | None, typer.Option(help="Events of one key keep their order.")]
Type = Annotated[str, typer.Option("--type", help="What kind of event it is.")]
ContentType = Annotated[str, typer.Option(help="Of the payload, as application/json.")]
Headers = Annotated[
    list[str] | None, typer.Option(help="name=value, where value is JSON or else text; repeat.")
]
Partition = Annotated[int | None, typer.Option(help="This one, and not that of the key.")]
NotBefore = Annotated[
    datetime | None, typer.Option(help="Delay it until then; UTC.", show_default=False)
]
DedupKey = Annotated[
    str | None, typer.Option(help="Publish no second event with this key for a while.")
]
OnlyPartition = Annotated[
    int | None, typer.Option("--partition", help="Only this partition, else all.")
]
MostEvents = Annotated[int, typer.Option("--max", min=1, help="Of all partitions.")]
TailStart = Annotated[
    str,
    typer.Option(
        "--from", help="earliest, latest, or how many of the newest events of each partition."
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
]
MostTailed = Annotated[int | None, typer.Option("--max", min=1, help="Leave after so many events.")]


def show_published(topic: str, event_id: uuid.UUID, duplicate: bool, output: Lines) -> None:
    """Write what became of one published event."""
    if output is Lines.json:
        show_line({"topic": topic, "event_id": event_id, "duplicate": duplicate})
        return
    if duplicate:
        say("a duplicate: nothing was published, this is the earlier event")
    sys.stdout.write(f"{event_id}\n")
