"""The root of the command: its options, its sub-commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import EntryPoint
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import penstock
from penstock.cli import collector, over_http, page
from penstock.cli.commands import OWN, is_here, load, load_registered, registered
from penstock.http.address import URL_VARIABLE


class Commands(TyperGroup):
    """The root command: its own sub-commands and those of the platform."""

    _registered: list[EntryPoint] | None = None

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands of the wheel first, then those of the platform that can run here."""
        return [*OWN, *(each.name for each in self._more() if is_here(each))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command of the wheel, or else one of the platform.  It is loaded now."""
        try:
            return self._loaded(ctx, cmd_name)
        finally:
            collector.let_go()

    def _loaded(self, ctx: Any, cmd_name: str) -> Any:
        if ctx.params.get("gateway") or over_http.is_meant():
            return over_http.load(cmd_name)
        if cmd_name in OWN:
            return load(cmd_name)
        return next((load_registered(each) for each in self._more() if each.name == cmd_name), None)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The page of all commands, which is made without Typer."""
        sys.stdout.write(page.text())

    def _more(self) -> list[EntryPoint]:
        """The registered commands.  To look through all installed packages takes a while."""
        if self._registered is None:
            self._registered = registered()
        return self._registered


root = typer.Typer(
    cls=Commands,
    help=f"{page.ABOUT}\n\n{page.MORE}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(penstock.__version__)
        raise typer.Exit


@root.callback()
def options(
    schema: Annotated[
        str | None,
        typer.Option(help=page.SCHEMA),
    ] = None,
    gateway: Annotated[
        str | None,
        typer.Option(help=page.GATEWAY),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", help=page.VERSION, is_eager=True, callback=_say_version),
    ] = False,
) -> None:
    if schema is not None:
        from penstock.database import config

        # The environment, so that sub-commands, their threads and processes all see it.
        os.environ[config.SCHEMA_VARIABLE] = config.validate_schema(schema)
    if gateway is not None:
        os.environ[URL_VARIABLE] = gateway


def _asks_nothing(arguments: list[str]) -> bool:
    """Whether the arguments only ask about the command itself, as --help does."""
    return not arguments or not {"--help", "--version"}.isdisjoint(arguments)


def _embedded() -> AbstractContextManager[None]:
    from penstock.cli.embedded import found_where_none_is_configured

    if over_http.is_meant():
        return nullcontext()
    return found_where_none_is_configured()


def invoke(arguments: Sequence[str]) -> int:
    """Run the command with these arguments.  Returns the exit code."""
    given = list(arguments)
    try:
        with nullcontext() if _asks_nothing(given) else _embedded():
            root(given, prog_name="penstock")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0
