"""What a driver raised: its codes, and Penstock's error of the same meaning."""

from __future__ import annotations

from penstock.errors import (
    DEFAULT_SCHEMA,
    NoDiskSpace,
    NotMigrated,
    PenstockError,
    TransactionRolledBack,
)


def _with_sqlstate(base: type[PenstockError]) -> dict[str, type[PenstockError]]:
    found: dict[str, type[PenstockError]] = {}
    for each in base.__subclasses__():
        if each.sqlstate is not None:
            found[each.sqlstate] = each
        found.update(_with_sqlstate(each))
    return found


#: What to do, where the database cannot say it: MySQL's errors have only one short text.
HINTS = {
    "PS001": "Create the namespace first: penstock namespace create.",
    "PS002": "Create it: penstock topic create, or penstock.create_topic(...).",
    "PS004": "Keep large data elsewhere and publish where it is.",
    "PS005": "Partitions are numbered from 0; penstock topic describe tells how many there are.",
    "PS006": "Nothing was changed.",
    "PS007": "Choose another name, or ask for what exists.",
    "PS010": "Drop what was read, roll back, and check in: another consumer may have taken over.",
    "PS011": "Positions only move forward; use seek to go back.",
    "PS012": "Commit only what was read.",
    "PS013": 'Create it: penstock.subscribe(connection, "NAME", ["namespace/topic"]), or '
    "penstock.queue.subscribe for a queue.",
    "PS014": "Join again.",
    "PS015": "Give each process a consumer id of its own.",
    "PS016": "Read it from the archive (archive=targets), or start at the low sequence.",
    "PS017": "penstock clean reads the copies back first, backfill makes what is missing again.",
    "PS018": "Call it in a transaction of isolation level READ COMMITTED.",
    "PS019": "Look at what was sealed: log_epochs_of, and lsn_of for a position.",
    "PS020": "Remove what uses it first.",
    "PS021": "Reconcile the restore first: penstock restore reconcile.",
    "PS022": "Wait until the sequencer has caught up, then publish again.",
    "PS023": "ROLLBACK, or go back to a savepoint set before that call, and do it again.",
    "PS025": "It was cancelled, has ended or was claimed again: stop working on it.",
    "PS026": "Stage and publish it again; an old version needs another writer name.",
    "PS027": "Release the hold, or let the relay or clean end its work; then run it again.",
    "PS028": "Write these rows with a higher version, or under another name.",
    "PS029": "penstock bookmark list shows those that there are.",
    "PS030": "Give a name of 1 to 500 characters.",
    "PS031": "Use at most 500 characters.",
    "PS032": "Use at most 4,000 characters for path and topic.",
    "PS033": "Use printable characters only.",
    "PS034": '"/" separates the names of a path, and stands nowhere else.',
    "PS035": "Choose a parent outside of what is moved.",
    "PS040": "The partition stands still until some are redriven or dropped: penstock dead-letter.",
    "PS041": "Roll back: they were finished before, dropped, or given back.",
    "PS042": "A subscription keeps its mode: use another one.",
    "PS043": "Pass receipts as they were returned, each once.",
    "PS044": "Roll back: the event was finished, or it was handed out again.",
    "PS050": "Show a key of the account that is good now; penstock account show lists them.",
    "PS051": "A gateway begins each transaction with act_as; its login is in no other role.",
    "PS052": "Nothing was published; penstock account quota shows the quota.",
}

#: What PostgreSQL's hints call by SQL, as Python calls it.
_IN_PYTHON = (
    (
        "SELECT penstock.subscribe(..., mode => 'queue')",
        'penstock.queue.subscribe(connection, "NAME", ["namespace/topic"])',
    ),
    (
        "SELECT penstock.subscribe(...)",
        'penstock.subscribe(connection, "NAME", ["namespace/topic"])',
    ),
    ("SELECT penstock.create_topic(...)", "penstock.create_topic(...)"),
)

#: The error class of each SQLSTATE that Penstock's functions raise.
BY_SQLSTATE: dict[str, type[PenstockError]] = _with_sqlstate(PenstockError)

_UNDEFINED = frozenset({"3F000", "42883", "42P01"})  # schema, function, table
_DISK_FULL = "53100"

#: On MySQL and MariaDB the number of an error is this plus the number in its SQLSTATE.
MYSQL_ERRNO = 31_000
_MYSQL_ERRNOS = range(MYSQL_ERRNO, MYSQL_ERRNO + 1_000)
_MYSQL_MODULES = frozenset({"pymysql", "mysqldb", "mysql", "mariadb"})
_MYSQL_UNDEFINED = frozenset({1046, 1049, 1146, 1305, 1630})  # database, table, procedure
#: A procedure that is not there, that has other parameters, or on which the login has no right
#: (yet).
_MYSQL_NO_PROCEDURE = frozenset({1305, 1318, 1370})
_MYSQL_DISK_FULL = frozenset({1021, 1114})
_MARIADB_SNAPSHOT_TOO_OLD = 1020  # innodb_snapshot_isolation


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE of a driver error, also of one that SQLAlchemy has wrapped."""
    inner = driver_error(error)
    number = errno_of(inner)
    if number is not None and number in _MYSQL_ERRNOS:
        return f"PS{number - MYSQL_ERRNO:03d}"
    for name in ("sqlstate", "pgcode"):
        value = _attribute(inner, name)
        if isinstance(value, str):
            return value
    return None


def errno_of(error: BaseException) -> int | None:
    """The number of an error of MySQL, MariaDB or one of their drivers; None for all others."""
    inner = driver_error(error)
    if type(inner).__module__.partition(".")[0].lower() not in _MYSQL_MODULES:
        return None
    number = getattr(inner, "errno", None) or (inner.args[0] if inner.args else None)
    return number if isinstance(number, int) else None


def driver_error(error: BaseException) -> BaseException:
    """The driver's own exception inside SQLAlchemy's or Django's, else the exception itself."""
    inner = _attribute(error, "orig")
    found = inner if isinstance(inner, BaseException) else error
    # Django's errors, and those of SQLAlchemy's DB-API for asyncpg, are raised from the driver's.
    is_wrapped = type(found).__module__.partition(".")[0] in {"django", "sqlalchemy"}
    return found.__cause__ if is_wrapped and found.__cause__ is not None else found


def _attribute(error: BaseException, name: str) -> object:
    """An attribute of drivers' errors.  Other errors may raise when they are asked for it."""
    try:
        return getattr(error, name, None)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def from_database(error: BaseException, schema: str = DEFAULT_SCHEMA) -> PenstockError | None:
    """The Penstock error that a driver error stands for, or None when it is not one of ours."""
    state, number = sqlstate_of(error), errno_of(error)
    if state is None and number is None:
        return None
    message, hint = _texts(driver_error(error))
    for in_sql, in_python in _IN_PYTHON:
        hint = hint.replace(in_sql, in_python)
    if state in BY_SQLSTATE:
        return BY_SQLSTATE[state](message, hint=hint or HINTS.get(state, ""))
    if (state in _UNDEFINED or number in _MYSQL_UNDEFINED) and _mentions(message, schema):
        return NotMigrated(
            f"schema {schema} is not migrated for this version of Penstock: {message}"
        )
    if state == _DISK_FULL or number in _MYSQL_DISK_FULL:
        return NoDiskSpace(
            f"the database server has no disk space left ({message})",
            hint="free or add disk space; nothing of the transaction was written",
        )
    if number == _MARIADB_SNAPSHOT_TOO_OLD:
        return TransactionRolledBack(
            f"the database has rolled back the whole transaction ({message})",
            hint="roll back and begin the transaction again, or use READ COMMITTED",
        )
    return None


def lacks_procedure(error: BaseException) -> bool:
    """Whether a typed error stands for a missing procedure of MySQL's, or a missing right on it."""
    cause = error.__cause__ if isinstance(error, PenstockError) else None
    return cause is not None and errno_of(cause) in _MYSQL_NO_PROCEDURE


def _texts(error: BaseException) -> tuple[str, str]:
    """Message and hint of psycopg (`diag`), asyncpg and MySQL's drivers; those have no hint."""
    if errno_of(error) is not None and error.args:
        return str(error.args[-1]).strip(), ""
    diagnosis = getattr(error, "diag", None)
    message = getattr(diagnosis, "message_primary", None) or getattr(error, "message", None)
    hint = getattr(diagnosis, "message_hint", None) or getattr(error, "hint", None)
    return str(message or error).strip(), str(hint or "").strip()


def _mentions(message: str, schema: str) -> bool:
    return any(form in message for form in (f'"{schema}"', f"'{schema}'", f"{schema}."))
