"""What a command works on: a database, and its part of the policy file."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.database import config
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from ops.policies.file import Policies
    from penstock.archive.targets import Target

#: The option of all commands that work on one database.
Database = Annotated[
    str | None,
    typer.Option("--database", help="A database of the policy file, else the environment's."),
]


class Installation:
    """The database that the environment names, or one of the policy file by its name."""

    def __init__(self, database: str | None = None, file: Path | None = None) -> None:
        """Read nothing yet: some commands need no policy file."""
        self._database = database
        self._file = file

    @cached_property
    def policies(self) -> Policies:
        """What the policy file says for it."""
        from ops.policies import file as policy_file

        found = policy_file.load(self._file)
        return found if self._database is None else found.of_database(self._database)

    def known_policies(self) -> Policies:
        """The same; without a policy file one that says nothing, so that presets count."""
        from ops.policies import file as policy_file

        if self._database is None and self._file is None and not policy_file.is_there():
            return policy_file.parse("", policy_file.default_path())
        return self.policies

    @cached_property
    def url(self) -> str:
        """Its address."""
        return config.database_url() if self._database is None else self.policies.database_url()

    def known_targets(self) -> list[Target]:
        """The targets that can be named now; none without a policy file."""
        from ops.policies import file as policy_file

        if self._database is None:
            return policy_file.known_targets(None)
        return self.policies.usable_targets()

    def target(self, text: str) -> Target:
        """``NAME=DIRECTORY``, or a name that the policy file knows."""
        from penstock.archive.targets import Target

        name, given, uri = text.partition("=")
        if not given:
            return self.policies.target(name)
        if not uri:
            raise ConfigurationError(f"the target {text!r} is not NAME=DIRECTORY")
        return Target(name, uri)
