"""Archive targets as Dagster sees them: the places that the policy file names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from ops.policies.file import load

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.archive.targets import Target


class ArchiveTargetResource(dg.ConfigurableResource[None]):
    """The archive targets of the policy file, by name."""

    def target(self, name: str) -> Target:
        """One target.  A place that names a variable is resolved now."""
        return load().target(name)

    def every(self) -> list[Target]:
        """All of them that can be named now."""
        return self.usable(load().targets)[0]

    def usable(self, names: Iterable[str]) -> tuple[list[Target], dict[str, str]]:
        """Those that can be named now, and why the others cannot: one does not stop the rest."""
        return load().usable(names)
