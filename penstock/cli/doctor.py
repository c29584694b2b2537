"""``penstock doctor``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import LineOutput, Lines, as_dict, say, show_json
from penstock.doctor import Limits, doctor as examine

_DEFAULT = Limits()


def doctor(
    snapshot_age: Annotated[
        float, typer.Option(min=0, help="Seconds that a transaction may stay open.")
    ] = _DEFAULT.snapshot_seconds,
    waiting_age: Annotated[
        float, typer.Option(min=0, help="Seconds that an event may wait for its sequence.")
    ] = _DEFAULT.waiting_seconds,
    storage_days: Annotated[
        float, typer.Option(min=0, help="Days that prepared storage has to be enough for.")
    ] = _DEFAULT.storage_days,
    output: LineOutput = Lines.text,
) -> None:
    """Say what is wrong, a line for each with the command that mends it. Exit code 1: a finding."""
    limits = Limits(snapshot_age, waiting_age, storage_days)
    found = examine(limits=limits)
    if output is Lines.json:
        show_json([as_dict(each) for each in found])
    else:
        for each in found:
            page = f" ({each.page})" if each.page else ""
            line = f"{each.severity}: {each.check}: {each.what}{page}. run: {each.command}"
            sys.stdout.write(f"{_printable(line)}\n")
    if found:
        raise typer.Exit(EXIT_NO)
    if output is Lines.text:
        say("nothing is wrong")


def _printable(text: str) -> str:
    """Text with unprintable characters escaped: a name must not control the terminal."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
