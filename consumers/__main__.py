"""``python -m consumers``: the daemon."""

from __future__ import annotations

import sys

import typer

from consumers.commands import run_daemon
from penstock.cli.main import refused_by_database
from penstock.errors import PenstockError

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(run_daemon)


def main() -> None:
    """Run the daemon and exit with its code.  An error is one line, not a traceback."""
    try:
        app(prog_name="python -m consumers")
    except PenstockError as error:
        _refuse(str(error))
    except Exception as error:
        said = refused_by_database(error)
        if said is None:
            raise
        _refuse(said)


def _refuse(problem: str) -> None:
    print(f"penstock: {problem}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
