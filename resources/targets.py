"""Archive targets as Dagster sees them: the places that the policy file names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from ops.policies.file import load

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ops.policies.file import Policies
    from penstock.archive.targets import Target


class ArchiveTargetResource(dg.ConfigurableResource[None]):
    """The archive targets of the policy file, by name.

    Those of a database that the file names lie in a folder of its own.
    """

    database: str = ""

    def of(self, name: str) -> ArchiveTargetResource:
        """The targets of another database of the policy file."""
        return ArchiveTargetResource(database=name)

    def _policies(self) -> Policies:
        return load().of_database(self.database)

    def target(self, name: str) -> Target:
        """One target.  A place that names a variable is resolved now."""
        return self._policies().target(name)

    def every(self) -> list[Target]:
        """All of them that can be named now."""
        return self.usable(self._policies().targets)[0]

    def usable(self, names: Iterable[str]) -> tuple[list[Target], dict[str, str]]:
        """Those that can be named now, and why the others cannot: one does not stop the rest."""
        return self._policies().usable(names)
