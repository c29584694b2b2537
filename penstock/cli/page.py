"""The page of ``penstock --help``, in the form of Typer's pages.

Typer and rich take most of the time of a short command.  This page needs neither: it is made of
the names and texts in :mod:`penstock.cli.commands`.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Iterator

from penstock.cli import commands

USAGE = "Usage: penstock [OPTIONS] COMMAND [ARGS]..."
ABOUT = "Events in the database that you already have."
MORE = (
    "The database is PENSTOCK_DATABASE_URL, or else DB_TYPE, DB_HOST, DB_PORT, DB_NAME, DB_USER"
    " and DB_PASSWORD. In a checkout without these it is the embedded one, if that runs."
    " Without a database, PENSTOCK_GATEWAY_URL and PENSTOCK_GATEWAY_KEY name an HTTP gateway.\n"
    "Exit codes: 0 done; 1 the answer is no; 2 the call was wrong; 3 the database or the machine"
    " failed."
)

SCHEMA = "The schema that holds Penstock, else PENSTOCK_SCHEMA."
GATEWAY = "An HTTP gateway instead of a database: https://HOST/ACCOUNT."
VERSION = "Say the version and leave."
#: Each option, what it takes, and what it does.
OPTIONS = (
    ("--schema", "<str>", SCHEMA),
    ("--gateway", "<str>", GATEWAY),
    ("--version", "<bool>", VERSION),
    ("--help", "<bool>", "Show this message and exit."),
)

#: Typer leaves room between an option and its type for a short form and for --no-.
_NO_SHORT_FORM = " " * 8
_WIDTH = 80
_NARROWEST = 50
_BOX = "╭─╮│╰╯"
_ASCII_BOX = "+-+|++"

_BOLD, _DIM, _NAME, _OPTION, _TYPE = "1", "2", "1;36", "1;36", "1;33"


def is_asked_for(arguments: list[str]) -> bool:
    """Whether a call asks for this page and nothing else."""
    return arguments in ([], ["--help"])


def text() -> str:
    """The page, as wide as the terminal."""
    return _Page(_width(), _is_coloured(), _box()).text()


class _Page:
    def __init__(self, width: int, coloured: bool, box: str) -> None:
        self._width = width
        self._coloured = coloured
        self._box = box

    def text(self) -> str:
        entries = commands.registered()
        here = {each.name: each for each in entries if commands.is_here(each)}
        rows = [(name, about) for name, (_, about) in commands.OWN.items()]
        rows += [(name, commands.about(each)) for name, each in here.items()]
        lines = ["", *(self._styled(_BOLD, each) for each in self._paragraph(USAGE)), ""]
        lines += [*self._paragraph(ABOUT), ""]
        lines += [self._styled(_DIM, each) for each in self._paragraph(MORE)]
        lines += ["", *self._panel("Options", self._options())]
        lines += self._panel("Commands", self._commands(rows))
        missing = ", ".join(each.name for each in entries if each.name not in here)
        if missing:
            said = f"In a checkout of Penstock, after `make setup`: {missing}."
            lines += ["", *self._paragraph(said), ""]
        return "".join(f"{line}\n" for line in lines)

    def _paragraph(self, said: str) -> list[str]:
        return [f" {line}" for line in _wrapped(said, self._width - 2)]

    def _options(self) -> Iterator[tuple[str, str, str]]:
        names = max(len(name) for name, _, _ in OPTIONS)
        types = max(len(kind) for _, kind, _ in OPTIONS)
        for name, kind, about in OPTIONS:
            name, kind = f"{name:<{names}}{_NO_SHORT_FORM}", f"{kind:<{types}}"
            styled = self._styled(_OPTION, name) + self._styled(_TYPE, kind)
            yield name + kind, styled, about

    def _commands(self, rows: list[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
        names = max(len(name) for name, _ in rows)
        for name, about in rows:
            head = f"{name:<{names}}"
            yield head, self._styled(_NAME, head), about

    def _panel(self, title: str, rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
        """A box of rows: plain and styled head, and a text beside it."""
        left, line, right, side, low_left, low_right = tuple(self._box)
        inner = self._width - 4
        rule = line * (inner - len(title) - 1)
        yield self._styled(_DIM, f"{left}{line} {title} {rule}{right}")
        side = self._styled(_DIM, side)
        for plain, styled, about in rows:
            room = inner - len(plain) - 2
            for number, part in enumerate(_wrapped(about, room)):
                head = " " * len(plain) if number else styled
                yield f"{side} {head}  {part:<{room}} {side}"
        yield self._styled(_DIM, f"{low_left}{line * (inner + 2)}{low_right}")

    def _styled(self, style: str, said: str) -> str:
        return f"\x1b[{style}m{said}\x1b[0m" if self._coloured and said.strip() else said


def _wrapped(said: str, width: int) -> Iterator[str]:
    for line in said.split("\n"):
        for part in textwrap.wrap(line, width, break_on_hyphens=False, break_long_words=False):
            yield from (part[start : start + width] for start in range(0, len(part), width))


def _width() -> int:
    """As rich finds it: what the environment says, or else the first terminal of the process."""
    for name in ("TERMINAL_WIDTH", "COLUMNS"):
        if os.environ.get(name, "").isdigit():
            return max(int(os.environ[name]), _NARROWEST)
    for stream in (sys.__stdin__, sys.__stderr__, sys.__stdout__):
        try:
            columns = os.get_terminal_size(stream.fileno()).columns if stream else 0
        except (ValueError, OSError):  # closed, or not a terminal
            continue
        if columns:
            return max(columns, _NARROWEST)
    return _WIDTH


def _is_coloured() -> bool:
    """Whether the page is for a terminal that shows colours."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in {"dumb", "unknown"}


def _box() -> str:
    """Lines where the stream can take them, else ASCII."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return _BOX if encoding.lower().startswith("utf") else _ASCII_BOX
