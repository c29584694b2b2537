"""``penstock restore``: what a restore of the database lost, and going on after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import database
from penstock.cli.archive_targets import ArchiveTargets, archive_targets
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, Output, say, show
from penstock.errors import ConfigurationError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.archive.targets import Target
    from penstock.log.restores import Seen

app = typer.Typer(
    help="See what a restore of the database lost, and go on after it.", no_args_is_help=True
)


@app.command("status")
def status(output: Output = Format.table) -> None:
    """Show what lies beyond the log; exit code 1 when something does."""
    from penstock.log.histories import histories, restore_status as verb

    with database.connect(application_name="penstock restore") as connection:
        found = verb(connection)
        newest = histories(connection)[-1]
    show(found, output)
    say(f"history {newest.history} since {newest.opened_at:%Y-%m-%d %H:%M:%S%z}: {newest.reason}")
    if found:
        raise typer.Exit(EXIT_NO)
    say(
        "nothing that anybody has reported lies beyond the log; whether a restore lost commits "
        "cannot always be told from inside: if it may have, compare with what consumers and "
        "targets have seen (penstock restore compare), or reconcile before they start"
    )


@dataclass(frozen=True, slots=True)
class Compared:
    """What was seen of a partition outside, beside where the log ends."""

    partition: int
    source: str
    sequence: int
    history: int
    high_watermark: int
    present_history: int
    stopped: bool


@app.command("compare")
def compare(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    *,
    seen: Annotated[
        list[str] | None,
        typer.Option(
            "--seen", help="What somebody has seen of a partition: PARTITION=SEQUENCE; repeat."
        ),
    ] = None,
    by: Annotated[str, typer.Option("--by", help="Who has seen it.")] = "an operator",
    history: Annotated[
        int | None,
        typer.Option("--history", help="The history of --seen; needed once there are several."),
    ] = None,
    target: ArchiveTargets = None,
    output: Output = Format.table,
) -> None:
    """Compare the log with what others have seen.  Exit code 1 when it ends before that.

    It stops such partitions, as a report of a relay or an archive run does, until the reconcile.
    """
    from penstock.log.histories import histories
    from penstock.topics.names import describe_topic

    with database.connect(application_name="penstock restore") as connection:
        found = describe_topic(connection, topic)
        newest = histories(connection)[-1].history
        if seen and history is None and newest > 1:
            raise UsageError(
                f"the log has {newest} histories, and a sequence means something in one only",
                hint="say by --history in which one it was seen",
            )
        given = _seen(seen or [], history or newest)
        rows = _compared(connection, found.topic_id, by, given)
        for each in archive_targets(target):
            rows += _compared(
                connection,
                found.topic_id,
                f"the archive {each.name}",
                _archived(each, found.known_as),
            )
    if not rows:
        raise UsageError(
            "there is nothing to compare the log with",
            hint="give --seen, or a --target that holds the topic; one may not be mounted",
        )
    show(rows, output)
    if any(each.stopped for each in rows):
        raise typer.Exit(EXIT_NO)


def _seen(given: list[str], history: int) -> dict[int, Seen]:
    from penstock.log.restores import Seen

    found = {}
    for each in given:
        partition, _, sequence = each.partition("=")
        if not (partition.isdecimal() and sequence.isdecimal()):
            raise ConfigurationError(
                f"{each!r} is not PARTITION=SEQUENCE", hint="for example --seen 0=1234"
            )
        found[int(partition)] = Seen(int(sequence), history)
    return found


def _archived(target: Target, known_as: str) -> dict[int, Seen]:
    from penstock.archive.table import ArchiveTable
    from penstock.log.restores import Seen

    newest = ArchiveTable(target, known_as).newest()
    return {partition: Seen(sequence, history) for partition, (history, sequence) in newest.items()}


def _compared(
    connection: Any, topic_id: int, source: str, seen: Mapping[int, Seen]
) -> list[Compared]:
    from penstock.log.restores import report_positions
    from penstock.topics.partition_ids import id_of

    by_id = {id_of(topic_id, partition): each for partition, each in seen.items()}
    reports = report_positions(connection, by_id, source)
    return [
        Compared(
            partition,
            source,
            each.sequence,
            each.history,
            reports[id_of(topic_id, partition)].high_watermark,
            reports[id_of(topic_id, partition)].history,
            reports[id_of(topic_id, partition)].stopped,
        )
        for partition, each in sorted(seen.items())
    ]


@app.command("reconcile")
def reconcile(
    reason: Annotated[str, typer.Argument(help="What was restored, and to when; it is recorded.")],
    yes: Annotated[bool, typer.Option("--yes", help="It opens a new history for good.")] = False,
) -> None:
    """Open the next history: readers ask again where they stand, and stopped partitions go on."""
    from penstock.log.histories import reconcile as verb

    if not yes:
        raise ConfigurationError(
            "reconcile takes every lease from its holder and cannot be undone",
            hint="look at `penstock restore status`, and say --yes if commits were lost",
        )
    with database.connect(application_name="penstock restore") as connection:
        say(f"history {verb(connection, reason)} has begun")
