"""Every error that Penstock raises.

The database's functions raise with an SQLSTATE of class ``PS``; :func:`from_database` turns such a
driver error into the class of the same meaning.  Each error says what is wrong and, in
:attr:`PenstockError.hint`, what to do about it.  Texts never carry credentials.
"""

from __future__ import annotations

from typing import ClassVar

DEFAULT_SCHEMA = "penstock"


class PenstockError(Exception):
    """Base class of all errors of Penstock.

    ``message`` says what happened, ``hint`` what to do; ``str(error)`` is both.
    """

    sqlstate: ClassVar[str | None] = None

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        return f"{self.message.rstrip('.')}. {self.hint}"


class UsageError(PenstockError):
    """The call cannot succeed as it was made: the caller has to change something."""


class ConfigurationError(UsageError):
    """An environment variable or an option is missing or cannot be understood."""


class MissingExtra(ConfigurationError):
    """A Python package is missing; the hint names packages that an index has."""

    @classmethod
    def of(cls, package: str, install: str) -> MissingExtra:
        """The error for a package, and what pip is to install."""
        names = " ".join(f"'{each}'" for each in install.split())
        return cls(
            f"the Python package {package} is not installed", hint=f"run: pip install {names}"
        )


class NamespaceNotFound(UsageError):
    """The namespace does not exist."""

    sqlstate = "PS001"


class TopicNotFound(UsageError):
    """The topic does not exist."""

    sqlstate = "PS002"


class InvalidName(UsageError):
    """A name is empty, too long or holds a character that names cannot have."""

    sqlstate = "PS003"


class EmptyName(InvalidName):
    """A name is empty, or nothing but blanks."""

    sqlstate = "PS030"


class NameTooLong(InvalidName):
    """One name of a path has more characters than a name may have."""

    sqlstate = "PS031"


class PathTooLong(InvalidName):
    """Path and topic together have more characters than an address may have."""

    sqlstate = "PS032"


class ControlCharacter(InvalidName):
    """A name holds a character that cannot be seen."""

    sqlstate = "PS033"


class EmptySegment(InvalidName):
    """A slash has no name before or after it, or is inside what should be one name."""

    sqlstate = "PS034"


class MovedUnderItself(UsageError):
    """A namespace cannot become its own descendant."""

    sqlstate = "PS035"


class PayloadTooLarge(UsageError):
    """The payload is longer than the limit; nothing was written."""

    sqlstate = "PS004"


class InvalidPartition(UsageError):
    """The partition number is negative or not below the topic's number of partitions."""

    sqlstate = "PS005"


class InvalidArgument(UsageError):
    """An argument has the wrong type or is outside its range."""

    sqlstate = "PS006"


class AlreadyExists(UsageError):
    """A namespace, topic or subscription of this name exists already, with other properties."""

    sqlstate = "PS007"


class StaleLease(PenstockError):
    """The lease was lost to another consumer, so the call changed nothing.

    What the same transaction wrote must be rolled back: the new holder handles those events again.
    """

    sqlstate = "PS010"


class BackwardCommit(UsageError):
    """The committed sequence lies before the position; a commit moves forward only."""

    sqlstate = "PS011"


class BeyondHighWatermark(UsageError):
    """The committed sequence lies beyond the partition's high watermark."""

    sqlstate = "PS012"


class SubscriptionNotFound(UsageError):
    """The subscription does not exist."""

    sqlstate = "PS013"


class UnknownConsumer(PenstockError):
    """The consumer is not, or no longer, a member of the subscription; it has to join again."""

    sqlstate = "PS014"


class DuplicateSession(PenstockError):
    """Another process has joined under the same consumer id."""

    sqlstate = "PS015"


class BelowLowSequence(PenstockError):
    """The sequence lies below the low sequence: the database does not hold it any more."""

    sqlstate = "PS016"


class RetentionRefused(PenstockError):
    """The log epoch is not proven safe to drop: a copy does not verify, or it is still needed."""

    sqlstate = "PS017"


class WrongIsolation(UsageError):
    """The function needs a transaction of isolation level READ COMMITTED."""

    sqlstate = "PS018"


class EpochError(PenstockError):
    """The log epoch does not exist, or is not in the state that the call needs."""

    sqlstate = "PS019"


class InUse(UsageError):
    """Something still uses what was to be deleted; nothing was changed."""

    sqlstate = "PS020"


class LogBehind(PenstockError):
    """A position lies beyond the log: a restore lost commits that were seen outside."""

    sqlstate = "PS021"


class BackPressure(PenstockError):
    """More waits for its sequence than the topic's limits allow; nothing was written."""

    sqlstate = "PS022"


class TornTransaction(PenstockError):
    """An earlier call was interrupted and is done in part; roll the transaction back.

    MySQL and MariaDB only: there a killed statement does not undo the procedure that runs it.
    """

    sqlstate = "PS023"


class StaleAttempt(PenstockError):
    """The backfill request was cancelled, has ended or was claimed again: nothing was changed."""

    sqlstate = "PS025"


class TransactionRolledBack(PenstockError):
    """The database has rolled back the whole transaction with the caller's work: begin again.

    MariaDB only, at REPEATABLE READ: a row that the call locks is newer than the snapshot.
    """


class WriteLost(PenstockError):
    """What was staged for a write is not all there, or its version is too old; write again."""

    sqlstate = "PS026"


class ErasureRefused(PenstockError):
    """What is to be erased is under a legal hold, or a relay is about to send it."""

    sqlstate = "PS027"


class BookmarkNotFound(UsageError):
    """The topic has no bookmark of this name."""

    sqlstate = "PS029"


class TooManyParked(PenstockError):
    """The subscription has parked as many events as it may; the position did not move."""

    sqlstate = "PS040"


class NotRedriven(PenstockError):
    """A redriven dead letter waits no longer: it was finished, dropped or given back.

    What the same transaction wrote must be rolled back.
    """

    sqlstate = "PS041"


class WrongMode(UsageError):
    """The call is for a queue and the subscription is a stream, or the other way round."""

    sqlstate = "PS042"


class MalformedReceipt(UsageError):
    """A receipt cannot be read, or one event is named twice; nothing was changed."""

    sqlstate = "PS043"


class StaleReceipt(PenstockError):
    """A receipt is not good, or no longer; nothing was changed.

    Its event was finished or handed out again, or it is no receipt of this queue: the error says
    the same in all cases.  What the same transaction wrote must be rolled back.
    """

    sqlstate = "PS044"


class NotOnThisEngine(UsageError):
    """The feature is not there on this kind of database."""


class NotMigrated(PenstockError):
    """The database has no Penstock schema, or one older than this program needs."""

    def __init__(self, message: str, *, hint: str = "run `penstock migrate`") -> None:
        super().__init__(message, hint=hint)


class SchemaTooNew(PenstockError):
    """The schema was migrated by a newer Penstock than this program."""


class MigrationChanged(PenstockError):
    """A migration that was applied differs from the file of the same number (checksum drift)."""


class MigrationBlocked(PenstockError):
    """A migration waited too long for a lock; nothing of it was applied, so it can be run again."""


class DatabaseTooOld(PenstockError):
    """The server is older than Penstock needs."""


class CoordinationUnavailable(PenstockError):
    """The store that keeps leases outside the database cannot be reached."""


class PositionsElsewhere(UsageError):
    """The subscription's leases and positions are not kept where the call needs them."""


class DatabaseUnavailable(PenstockError):
    """The database cannot be reached, or refused the login."""


class PermissionDenied(PenstockError):
    """The login does not have the rights that the call needs."""


class NotInRole(PermissionDenied):
    """The login is in no role of Penstock that may make the call, or the role does not exist."""


class NoDiskSpace(PenstockError):
    """The database server has no disk space left; the transaction has written nothing."""


class TargetUnavailable(PenstockError):
    """An archive target is not there now, its disk not mounted for example; nothing is lost."""


class CopyDamaged(PenstockError):
    """A copy of a log epoch is not what was sealed, or is gone; another target may hold it."""


class PayloadMisfit(PenstockError):
    """A payload cannot be decoded to the schema that was asked for."""


class EpochMissing(PenstockError):
    """Events are no longer in the database, and no copy of them can be read from the archive."""


class ForeignTarget(ConfigurationError):
    """A place is the archive target of another installation, or has another name."""


class PortTaken(UsageError):
    """Another process listens on the port that was asked for."""


class SinkError(PenstockError):
    """A relay's sink failed; base class of what sinks raise."""


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
    "PS013": "Subscribe first.",
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
}

#: The error class of each SQLSTATE that Penstock's functions raise.
BY_SQLSTATE: dict[str, type[PenstockError]] = _with_sqlstate(PenstockError)

_UNDEFINED = frozenset({"3F000", "42883", "42P01"})  # schema, function, table
_DISK_FULL = "53100"

#: On MySQL and MariaDB the number of an error is this plus the number in its SQLSTATE.
MYSQL_ERRNO = 31_000
_MYSQL_ERRNOS = range(MYSQL_ERRNO, MYSQL_ERRNO + 1_000)
_MYSQL_MODULES = frozenset({"pymysql", "mysqldb", "mysql", "mariadb"})
_MYSQL_UNDEFINED = frozenset({1046, 1049, 1146, 1305, 1630})  # database, table, procedure
_MYSQL_DISK_FULL = frozenset({1021, 1114})
_MARIADB_SNAPSHOT_TOO_OLD = 1020  # innodb_snapshot_isolation


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE of a driver error, also of one that SQLAlchemy has wrapped."""
    inner = driver_error(error)
    number = errno_of(inner)
    if number is not None and number in _MYSQL_ERRNOS:
        return f"PS{number - MYSQL_ERRNO:03d}"
    for name in ("sqlstate", "pgcode"):
        value = getattr(inner, name, None)
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
    inner = getattr(error, "orig", None)
    found = inner if isinstance(inner, BaseException) else error
    # Django's errors, and those of SQLAlchemy's DB-API for asyncpg, are raised from the driver's.
    is_wrapped = type(found).__module__.partition(".")[0] in {"django", "sqlalchemy"}
    return found.__cause__ if is_wrapped and found.__cause__ is not None else found


def from_database(error: BaseException, schema: str = DEFAULT_SCHEMA) -> PenstockError | None:
    """The Penstock error that a driver error stands for, or None when it is not one of ours."""
    state, number = sqlstate_of(error), errno_of(error)
    if state is None and number is None:
        return None
    message, hint = _texts(driver_error(error))
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
