"""Commands of the platform, registered by the entry-point group ``penstock.commands``.

They live with what they command (``ops``, ``consumers``).  Where the platform is not installed they
stay visible and say what is missing.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from penstock.errors import ConfigurationError, MissingExtra

GROUP = "penstock.commands"

#: The packages that are run from a checkout, and are not in the wheel.
PLATFORM = frozenset({"ops", "consumers", "resources", "dagster_project"})


class WithPlatform(TyperGroup):
    """The root command: its own sub-commands and those of the platform."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Own commands first."""
        own = super().list_commands(ctx)
        return [*own, *sorted(_registered().keys() - set(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """An own command, else one of the platform, loaded now."""
        own = super().get_command(ctx, cmd_name)
        entry = _registered().get(cmd_name)
        if own is not None or entry is None:
            return own
        return _load(entry)


def _registered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


@lru_cache(maxsize=64)
def _load(entry: EntryPoint) -> Any:
    """A Typer application, or a function that becomes one command."""
    try:
        found = entry.load()
    except ModuleNotFoundError as error:
        return _placeholder(entry.name, (error.name or "").partition(".")[0])
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False)
        found.command(name=entry.name)(function)
    command = typer.main.get_command(found)
    command.name = entry.name
    return command


def needs(package: str) -> ConfigurationError:
    """What to say of a command for which a package is missing."""
    if package not in PLATFORM:
        return MissingExtra(package, "penstock[platform]")
    return ConfigurationError(
        "the command belongs to the platform, which is not installed here",
        hint="run it from a checkout of Penstock, where `make setup` installs the platform",
    )


def _placeholder(name: str, package: str) -> Any:
    found = typer.Typer(add_completion=False)
    settings = {"ignore_unknown_options": True, "allow_extra_args": True}

    @found.command(
        name=name, help=f"Not installed: {needs(package).hint}.", context_settings=settings
    )
    def refuse() -> None:
        raise needs(package)

    return typer.main.get_command(found)
