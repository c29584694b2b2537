"""``penstock export``."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from penstock import database
from penstock.cli.archive_targets import ArchiveTargets, archive_targets
from penstock.cli.output import Format, Output, show
from penstock.errors import MissingExtra


class Form(enum.StrEnum):
    """The form of the files."""

    jsonl = "jsonl"
    parquet = "parquet"


def export(
    topic: Annotated[str, typer.Argument(help="namespace/path/topic")],
    folder: Annotated[Path, typer.Argument(help="Where the files are written; one a partition.")],
    *,
    form: Annotated[Form, typer.Option("--format", help="JSON Lines or Parquet.")] = Form.jsonl,
    begin: Annotated[int, typer.Option("--from", min=1, help="The first sequence.")] = 1,
    target: ArchiveTargets = None,
    output: Output = Format.table,
) -> None:
    """Write all events of a topic into files: JSON Lines or Parquet."""
    try:
        from penstock.archive.export import export_topic
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise MissingExtra.of("pyarrow", "pyarrow") from None
    with database.connect() as connection:
        done = export_topic(
            connection,
            topic,
            folder,
            form.value,
            first_sequence=begin,
            targets=archive_targets(target),
        )
        show(list(done), output)
