"""``penstock doctor``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, LineOutput, Lines, as_dict, say, show, show_json
from penstock.doctor import Limits, doctor as examine
from penstock.doctor.checks import CHECKS

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
    checks: Annotated[
        bool, typer.Option("--checks", help="Only list the checks, and when each finds something.")
    ] = False,
    output: LineOutput = Lines.text,
) -> None:
    """Say what is wrong, a line for each with the command that mends it. Exit code 1: a finding."""
    if checks:
        show(
            [{"check": name, **as_dict(each)} for name, each in CHECKS.items()],
            Format.json if output is Lines.json else Format.table,
        )
        return
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
