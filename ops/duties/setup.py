"""What units are worked off with: addresses of databases, archive targets and sinks.

It may hold passwords.  So it goes to Spark's tasks inside their function, which no page, plan or
log shows, and it is in no unit, report or error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ops.duties.units import MAIN, DutyUnit
from penstock.archive.targets import Target
from penstock.errors import ConfigurationError
from penstock.spark.options import DatabaseAddress


@dataclass(frozen=True, slots=True)
class Setup:
    """Where the databases of the units are, and what else their duties need.

    ``sinks`` are the addresses of the sinks of relays, by (database, subscription), and
    ``max_attempts`` says after how many failures of a block they give its events up, if ever.
    ``max_seconds`` is how long one unit of a relay may take.  ``lease_seconds`` is how long a
    backfill request stays with a runner that is silent.
    """

    databases: Mapping[str, DatabaseAddress] = field(repr=False)
    targets: tuple[Target, ...] = ()
    sinks: Mapping[tuple[str, str], str] = field(default_factory=dict, repr=False)
    max_attempts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    max_seconds: float = 60.0
    lease_seconds: float = 60.0

    @classmethod
    def of_url(cls, url: str, *targets: Target) -> Setup:
        """For one database."""
        return cls({MAIN: DatabaseAddress(url)}, targets)

    def url(self, unit: DutyUnit) -> str:
        """The address of a unit's database; ConfigurationError when it is not known here."""
        if unit.database not in self.databases:
            raise ConfigurationError(
                f"there is no database {unit.database!r}",
                hint=f"known are: {', '.join(self.databases) or 'none'}",
            )
        return self.databases[unit.database].found()

    def target(self, name: str) -> Target:
        """An archive target by its name."""
        for each in self.targets:
            if each.name == name:
                return each
        raise ConfigurationError(
            f"there is no archive target {name!r}",
            hint=f"known are: {', '.join(each.name for each in self.targets) or 'none'}",
        )

    def sink(self, unit: DutyUnit) -> str:
        """The address of the sink of a relay's unit."""
        found = self.sinks.get((unit.database, unit.subject))
        if found is None:
            raise ConfigurationError(
                f"the relay {unit.subject!r} has no sink", hint="give its address with the units"
            )
        return found
