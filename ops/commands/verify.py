"""``penstock verify``: every probe of an installation, as Dagster's checks make them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from ops.commands.installation import Database, Installation
from ops.probes import (
    ARCHIVE,
    END_TO_END,
    HOUSE,
    NO_ERRORS,
    POLICY_DRIFT,
    RELAY,
    Probe,
    ProbeVerdict,
    Table,
    World,
    probes,
)
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, Output, show, show_json
from penstock.database import connect
from penstock.errors import TopicNotFound, error_text
from penstock.topics import names

_MOST_SHOWN = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Probed:
    """What a probe says of a topic, of a relay, or (no ``of``) of the whole installation."""

    check: str
    of: str
    verdict: ProbeVerdict

    def row(self) -> dict[str, str]:
        """A line for people."""
        failed = "ERROR" if self.verdict.is_error else "warning"
        said = [f"{name}: {_short(value)}" for name, value in self.verdict.found.items()]
        return {
            "check": self.check,
            "of": self.of,
            "verdict": "ok" if self.verdict.passed else failed,
            "found": "; ".join(said),
        }

    def whole(self) -> dict[str, Any]:
        """All of it, for programs."""
        found = {
            name: [dict(zip(value.columns, row, strict=True)) for row in value.rows]
            if isinstance(value, Table)
            else value
            for name, value in self.verdict.found.items()
        }
        return self.row() | {"found": found}


def verify(
    topics: Annotated[
        list[str] | None, typer.Argument(help="namespace/path/topic ...; else all topics.")
    ] = None,
    *,
    canary: Annotated[
        bool, typer.Option(help="Send an event through the canary's topic: the only write.")
    ] = True,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Make every check that Dagster makes: log, consumers, copies, policies, one event end to end.

    Exit code 1: one has failed.
    """
    here = Installation(database)
    with connect(here.url, application_name="penstock verify") as connection:
        world = World(connection, here.url, here.policies, here.policies.usable)
        found = list(_probed(world, _topics(connection, topics), is_flying=canary))
    if output is Format.json:
        show_json([each.whole() for each in found])
    else:
        show([each.row() for each in found], output)
    if not all(each.verdict.passed for each in found):
        raise typer.Exit(EXIT_NO)


def _topics(connection: Any, wanted: list[str] | None) -> list[str]:
    present = [each.address for each in names.list_topics(connection)]
    for each in wanted or []:
        if each not in present:
            raise TopicNotFound(f'there is no topic "{each}"', hint="penstock topic list")
    return wanted or present


def _probed(world: World, topics: list[str], *, is_flying: bool) -> Iterator[Probed]:
    whole = [POLICY_DRIFT, NO_ERRORS]
    if is_flying and world.policies.canary:
        whole.append(END_TO_END)
    for probe in [*probes(world.policies.limits), *whole]:
        yield from _of_each(world, probe, _subjects(world, probe, topics))


def _subjects(world: World, probe: Probe, topics: list[str]) -> list[str]:
    """What a probe is made of."""
    if probe.scope == HOUSE:
        return [""]
    if probe.scope == RELAY:
        relays = world.policies.relays.values()
        return [each.name for each in relays if each.topic in topics]
    if probe.scope == ARCHIVE:
        return [each for each in topics if world.policies.of_topic(each).archive]
    return topics


def _of_each(world: World, probe: Probe, subjects: Iterable[str]) -> Iterator[Probed]:
    """What goes wrong with one is its own failure, and the others are still looked at."""
    subjects = [*subjects]
    if not subjects:
        return
    tell = probe.look(world)
    for each in subjects:
        try:
            verdict = tell(each)
        except Exception as error:
            verdict = ProbeVerdict(False, {"error": error_text(error)}, is_error=True)
        yield Probed(probe.name, each, verdict)


def _short(value: Any) -> str:
    if not isinstance(value, Table):
        return str(value)
    rows = [" ".join(str(cell) for cell in row) for row in value.rows[:_MOST_SHOWN]]
    more = len(value.rows) - len(rows)
    return ", ".join(rows) + (f" and {more} more" if more > 0 else "")
