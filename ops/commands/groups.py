"""Groups of commands with one that needs no name."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


def with_default(name: str) -> type[TyperGroup]:
    """A group in which what begins with no command is of the command ``name``."""

    class Group(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
                args = [name, *args]
            return super().parse_args(ctx, args)

    return Group
