"""Where the ``penstock`` command starts: errors become one line and an exit code.

Exit codes: 0 done; 1 the answer is no (``migrate --check`` found something to apply); 2 the call
was wrong; 3 the database or the machine stood in the way.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from penstock.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from penstock.errors import PenstockError, UsageError

_OF_THE_COMMAND = frozenset({"typer", "rich", "click"})


def app(arguments: Sequence[str] | None = None) -> None:
    """Run the command and leave with its exit code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and answer its exit code."""
    try:
        from penstock.cli.root import invoke
    except ModuleNotFoundError as error:
        if error.name not in _OF_THE_COMMAND:
            raise
        return _fail("the command needs typer and rich. run: pip install typer rich", 3)
    try:
        return invoke(sys.argv[1:] if arguments is None else arguments)
    except UsageError as error:
        return _fail(str(error), EXIT_USAGE)
    except PenstockError as error:
        return _fail(str(error), EXIT_FAILED)
    except BrokenPipeError:  # `penstock fetch ... | head`
        sys.stderr.close()
        return EXIT_FAILED
    except Exception as error:
        if not type(error).__module__.startswith(("psycopg", "pymysql")):
            raise
        return _fail(f"the database refused: {str(error).strip()}", EXIT_FAILED)


def _fail(text: str, code: int) -> int:
    sys.stderr.write(f"penstock: {text}\n")
    return code
