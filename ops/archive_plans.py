"""The plan of a Spark job over log epochs: what to read, what the seal says, what to replace."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from penstock.archive.copies import EpochKey


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """One log epoch of a Spark job: what the seal says, where to read and what to replace.

    ``files`` are a verified copy's files to read instead of the database; ``replaces`` are the
    damaged files, relative to the table, that the commit takes out of it.  ``marker`` is the marker
    of the target that the files lie on: without it they are not lost, but out of reach.
    """

    partition: int
    log_epoch: int
    first_sequence: int
    last_sequence: int
    event_count: int
    checksum: str
    history: int = 1
    files: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    marker: str = ""

    @property
    def key(self) -> EpochKey:
        """(partition, log epoch)."""
        return self.partition, self.log_epoch


def dump_plans(plans: list[EpochPlan]) -> str:
    """The plans as an option of a Spark data source."""
    return json.dumps([asdict(plan) for plan in plans])


def load_plans(text: str) -> list[EpochPlan]:
    """The plans out of that option."""
    return [
        EpochPlan(
            **{
                **entry,
                "files": tuple(entry["files"]),
                "replaces": tuple(entry["replaces"]),
            }
        )
        for entry in json.loads(text)
    ]
