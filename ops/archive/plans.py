"""The plan of a Spark job over log epochs: what to read, what the seal says, what to replace."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from penstock.archive.copies import EpochKey
from penstock.archive.targets import Target

#: Spark does not show options of this name.
TARGETS_OPTION = "secret_targets"

#: A file, the log epoch's first row in it, and how many rows it has; -1: all to the end.
FileRange = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """One log epoch of a Spark job: what the seal says, where to read and what to replace.

    ``files`` are a verified copy's files to read instead of the database, relative to the target
    ``source``.

    ``replaces`` are the damaged files of layout 2 that the commit takes out of the table, and
    ``replaces_folders`` those of layout 1, both relative to their table.  Other log epochs may lie
    in a file of layout 2: ``together`` are all that have to come with this one, or none comes.
    """

    partition: int
    log_epoch: int
    first_sequence: int
    last_sequence: int
    event_count: int
    checksum: str
    sealed_date: str = ""
    history: int = 1
    files: tuple[FileRange, ...] = ()
    replaces: tuple[str, ...] = ()
    replaces_folders: tuple[str, ...] = ()
    together: tuple[EpochKey, ...] = ()
    source: str = ""

    @property
    def key(self) -> EpochKey:
        """(partition, log epoch)."""
        return self.partition, self.log_epoch


def dump_targets(targets: Iterable[Target]) -> str:
    """Targets as an option of a Spark data source, whose name says that it is secret."""
    return json.dumps([asdict(target) for target in targets])


def load_targets(text: str) -> dict[str, Target]:
    """The targets out of that option, by name."""
    found = [
        Target(
            entry["name"], entry["uri"], tuple((name, value) for name, value in entry["options"])
        )
        for entry in json.loads(text)
    ]
    return {target.name: target for target in found}


def dump_plans(plans: list[EpochPlan]) -> str:
    """The plans as an option of a Spark data source."""
    return json.dumps([asdict(plan) for plan in plans])


def load_plans(text: str) -> list[EpochPlan]:
    """The plans out of that option."""
    return [
        EpochPlan(
            **{
                **entry,
                "files": tuple(map(tuple, entry["files"])),
                "replaces": tuple(entry["replaces"]),
                "replaces_folders": tuple(entry["replaces_folders"]),
                "together": tuple(map(tuple, entry["together"])),
            }
        )
        for entry in json.loads(text)
    ]
