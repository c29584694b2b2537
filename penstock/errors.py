"""Every error that Penstock raises.

The database's functions raise with an SQLSTATE of class ``PS``;
:func:`penstock.driver_errors.from_database` turns such a driver error into the class of the same
meaning.  Each error says what is wrong and, in
:attr:`PenstockError.hint`, what to do about it.  Texts never carry credentials.
"""

from __future__ import annotations

import re
import threading
from typing import ClassVar

DEFAULT_SCHEMA = "penstock"


class PenstockError(Exception):
    """Base class of all errors of Penstock.

    ``message`` says what happened, ``hint`` what to do; ``str(error)`` is both.
    """

    sqlstate: ClassVar[str | None] = None
    #: Whether the same call fails again until somebody changes something: to repeat it soon is no
    #: use.
    lasts: ClassVar[bool] = False

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

    lasts = True


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

    lasts = False

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


class NotACloudEvent(UsageError):
    """What was to be read is no CloudEvent; the text names the attribute."""


class SchemaMismatch(UsageError):
    """A payload does not fit the schema of its topic and type; the text says where."""


class IncompatibleSchema(UsageError):
    """A new version of a schema does not keep the compatibility that the present one asks for."""


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

    lasts = False

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


class WriteDiffers(PenstockError):
    """This version of a writer was published before, with other rows; nothing was written."""

    sqlstate = "PS028"


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


class AccountNotFound(UsageError):
    """No such account, or a key that is unknown, revoked, or outside of its time."""

    sqlstate = "PS050"


class ActsForNobody(PenstockError):
    """A gateway's login named no account in this transaction, or cannot act for one."""

    sqlstate = "PS051"


class QuotaExceeded(PenstockError):
    """An account has published as much as its quota allows for now; nothing was written."""

    sqlstate = "PS052"

    @property
    def retry_seconds(self) -> int:
        """After how many seconds to try again."""
        found = re.search(r"again in ([0-9]+) seconds", self.message)
        return int(found[1]) if found else 1


class NotOnThisEngine(UsageError):
    """The feature is not there on this kind of database."""


class NotMigrated(PenstockError):
    """The database has no Penstock schema, or one older than this program needs."""

    lasts = True

    def __init__(self, message: str, *, hint: str = "run `penstock migrate`") -> None:
        super().__init__(message, hint=hint)


class SchemaTooNew(PenstockError):
    """The schema was migrated by a newer Penstock than this program."""

    lasts = True


class MigrationChanged(PenstockError):
    """A migration that was applied differs from the file of the same number (checksum drift)."""

    lasts = True


class UnreleasedSchema(PenstockError):
    """The tables were made by a version that was never released; no migration leads on from it."""

    lasts = True


class MigrationRunning(PenstockError):
    """MySQL only: `migrate` is replacing what the call needs.  Roll back and begin again.

    The migration waits for the end of this transaction.  A call that is a transaction of its own
    waits for the migration instead.
    """


class MigrationBlocked(PenstockError):
    """A migration waited too long for a lock; nothing of it was applied, so it can be run again."""


class DatabaseTooOld(PenstockError):
    """The server is older than Penstock needs."""

    lasts = True


class CoordinationUnavailable(PenstockError):
    """The store that keeps leases outside the database cannot be reached."""


class PositionsElsewhere(UsageError):
    """The subscription's leases and positions are not kept where the call needs them."""


class DatabaseUnavailable(PenstockError):
    """The database cannot be reached, or refused the login."""


class PermissionDenied(PenstockError):
    """The login does not have the rights that the call needs."""

    lasts = True


class NotInRole(PermissionDenied):
    """The login is in no role of Penstock that may make the call, or the role does not exist."""


class NoDiskSpace(PenstockError):
    """The database server, or the folder of an export, has no disk space left.

    A transaction has written nothing; of an export, partitions that are whole stay.
    """


class TargetUnavailable(PenstockError):
    """An archive target is not there now, its disk not mounted for example; nothing is lost."""


class GatewayUnavailable(PenstockError):
    """The HTTP gateway cannot be reached, cannot do it now, or its answer was lost."""


class WebhookUnavailable(PenstockError):
    """The webhook did not take a message; it is posted again later."""


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

    lasts = False


class SinkError(PenstockError):
    """A relay's sink failed; base class of what sinks raise."""


def lasts(error: BaseException) -> bool:
    """Whether an error stays until somebody changes something, so that a repetition fails too."""
    return isinstance(error, PenstockError) and error.lasts


def said(error: BaseException) -> str:
    """What an error says.  It may be any library's: this cannot fail, whatever its ``str`` does."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:
        return f"(its text cannot be read: {type(problem).__name__})"


def error_text(error: BaseException) -> str:
    """The kind of an error and what it says, for logs, tables and pages."""
    return storable(f"{type(error).__name__}: {said(error)}")


def storable(text: str) -> str:
    """The text without what no table takes: PostgreSQL has no NUL, and UTF-8 no half of a pair."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


def is_interruption(error: BaseException) -> bool:
    """Whether an error ends the whole program, so that nobody may take it for a failure.

    A signal raises such errors in the main thread: Python's, and Dagster's when it ends a run.
    Raised elsewhere they come from the code that runs there.
    """
    kinds = {each.__name__ for each in type(error).__mro__}
    is_one = not kinds.isdisjoint(_INTERRUPTIONS)
    return is_one and threading.current_thread() is threading.main_thread()


_INTERRUPTIONS = frozenset({"KeyboardInterrupt", "DagsterExecutionInterruptedError"})
