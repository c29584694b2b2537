"""Where the ``penstock`` command starts: errors become one line and an exit code.

Exit codes: 0 done; 1 the answer is no (``migrate --check`` found something to apply); 2 the call
was wrong; 3 the database or the machine caused a failure.
"""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import penstock
from penstock.cli import collector, commands, page
from penstock.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from penstock.driver_errors import driver_error, errno_of, sqlstate_of
from penstock.errors import MissingExtra, PenstockError, UsageError

_OF_THE_COMMAND = frozenset({"typer", "rich", "click"})


def app(arguments: Sequence[str] | None = None) -> None:
    """Run the command and leave with its exit code.

    No garbage is looked for while it is loaded (`root` lets go), nor at the end of the process.
    """
    collector.hold_off()
    try:
        code = run(arguments)
    finally:
        collector.let_go()
        gc.freeze()
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may lack characters of a name
            stream.reconfigure(errors="backslashreplace")
    try:
        return _invoke(given)
    except UsageError as error:
        return _fail(_told(error), EXIT_USAGE)
    except PenstockError as error:
        return _fail(_told(error), EXIT_FAILED)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or find_spec(package) is not None:
            raise
        return _fail(_told(commands.needs(package)), EXIT_USAGE)
    except BrokenPipeError:  # `penstock fetch ... | head`
        sys.stderr.close()
        return EXIT_FAILED
    except Exception as error:
        said = refused_by_database(error)
        if said is None:
            raise
        return _fail(said, EXIT_FAILED)


def refused_by_database(error: Exception) -> str | None:
    """What to say of a driver's error, without the name of a login; None for any other error."""
    if sqlstate_of(error) is None and errno_of(error) is None and not _is_psycopg(error):
        return None
    from penstock.database.denied import without_user

    return f"the database refused: {without_user(str(driver_error(error)).strip())}"


def _invoke(given: list[str]) -> int:
    if page.is_asked_for(given) and find_spec("typer") is not None:
        return _show_page(given)
    if given == ["--version"]:  # it needs no extra
        sys.stdout.write(f"{penstock.__version__}\n")
        return 0
    try:
        from penstock.cli.root import invoke
    except ModuleNotFoundError as error:
        if error.name not in _OF_THE_COMMAND:
            raise
        raise MissingExtra.of(error.name or "typer", "typer rich") from error
    return invoke(given)


def _show_page(given: list[str]) -> int:
    """The page of all commands, without loading Typer.  A call without a command is a wrong one."""
    sys.stdout.write(page.text())
    sys.stdout.flush()
    return 0 if given else EXIT_USAGE


def _told(error: PenstockError) -> str:
    from penstock.cli.hints import for_the_command

    return str(for_the_command(error))


def _is_psycopg(error: BaseException) -> bool:
    return type(error).__module__.startswith("psycopg")


def _fail(text: str, code: int) -> int:
    sys.stderr.write(f"penstock: {text}\n")
    return code
