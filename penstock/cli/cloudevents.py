"""``penstock cloudevents``: whether what a file holds are CloudEvents."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import say
from penstock.errors import ConfigurationError, NotACloudEvent


def check(
    file: Annotated[str, typer.Argument(help="A file of JSON Lines, or - for the standard input.")],
    *,
    batch: Annotated[
        bool, typer.Option("--batch", help="The file is one list of events instead.")
    ] = False,
) -> None:
    """Read CloudEvents strictly: one that is none is refused, and its attribute named."""
    from penstock.publishing import cloudevents

    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
    if batch:
        count = len(cloudevents.read_batch(content))
    else:
        count = 0
        for number, line in enumerate(content.splitlines(), start=1):
            try:
                cloudevents.read_structured(line)
            except NotACloudEvent as error:
                raise NotACloudEvent(f"line {number}: {error.message}", hint=error.hint) from None
            count += 1
    say(f"{count} CloudEvents")
