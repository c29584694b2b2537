"""Driver errors become the typed error of the same meaning.  All others are left unchanged."""

from __future__ import annotations

import pickle
from typing import Any

import psycopg
import pytest
import sqlalchemy

from penstock import database, errors
from penstock.driver_errors import BY_SQLSTATE
from penstock.errors import NoDiskSpace, NotMigrated, PenstockError, TopicNotFound

EXPECTED = {
    "PS001": "NamespaceNotFound",
    "PS002": "TopicNotFound",
    "PS003": "InvalidName",
    "PS004": "PayloadTooLarge",
    "PS005": "InvalidPartition",
    "PS006": "InvalidArgument",
    "PS007": "AlreadyExists",
    "PS010": "StaleLease",
    "PS011": "BackwardCommit",
    "PS012": "BeyondHighWatermark",
    "PS013": "SubscriptionNotFound",
    "PS014": "UnknownConsumer",
    "PS015": "DuplicateSession",
    "PS016": "BelowLowSequence",
    "PS017": "RetentionRefused",
    "PS018": "WrongIsolation",
    "PS019": "EpochError",
    "PS020": "InUse",
    "PS021": "LogBehind",
    "PS022": "BackPressure",
    "PS023": "TornTransaction",
    "PS025": "StaleAttempt",
    "PS026": "WriteLost",
    "PS027": "ErasureRefused",
    "PS028": "WriteDiffers",
    "PS029": "BookmarkNotFound",
    "PS030": "EmptyName",
    "PS031": "NameTooLong",
    "PS032": "PathTooLong",
    "PS033": "ControlCharacter",
    "PS034": "EmptySegment",
    "PS035": "MovedUnderItself",
    "PS040": "TooManyParked",
    "PS041": "NotRedriven",
    "PS042": "WrongMode",
    "PS043": "MalformedReceipt",
    "PS044": "StaleReceipt",
    "PS050": "AccountNotFound",
    "PS051": "ActsForNobody",
    "PS052": "QuotaExceeded",
}


def all_errors() -> list[type[PenstockError]]:
    found = [each for each in vars(errors).values() if isinstance(each, type)]
    return [each for each in found if issubclass(each, PenstockError)]


def raising(code: str, message: str = "it is so", hint: str = "do this") -> str:
    return (
        f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}', MESSAGE = '{message}',"
        f" HINT = '{hint}'; END $$"
    )


def test_the_sqlstates_are_the_published_ones() -> None:
    assert {code: kind.__name__ for code, kind in BY_SQLSTATE.items()} == EXPECTED


@pytest.mark.parametrize("kind", all_errors())
def test_every_error_is_documented_and_survives_pickling(kind: type[PenstockError]) -> None:
    assert kind.__doc__
    error = pickle.loads(pickle.dumps(kind("it is so", hint="do this")))
    assert (str(error), error.hint) == ("it is so. do this", "do this")


def test_a_code_of_the_database_becomes_its_error(connection: psycopg.Connection[Any]) -> None:
    for code, kind in BY_SQLSTATE.items():
        with pytest.raises(kind) as caught:
            database.execute(connection, raising(code))
        assert (str(caught.value), caught.value.hint) == ("it is so. do this", "do this")


def test_through_sqlalchemy_the_error_does_not_print_the_parameters(database_url: str) -> None:
    engine = sqlalchemy.create_engine(database_url)
    with engine.connect() as connection, pytest.raises(TopicNotFound) as caught:
        database.execute(connection, raising("PS002"))
    engine.dispose()
    assert isinstance(caught.value.__cause__, psycopg.Error)
    assert caught.value.__suppress_context__


def test_a_full_disk_is_named(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(NoDiskSpace, match="no disk space"):
        database.execute(connection, raising("53100", "could not extend file"))


def test_an_error_of_the_caller_passes_untouched(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        database.execute(connection, "SELECT * FROM accounts_of_the_caller")
    with pytest.raises(psycopg.errors.UniqueViolation):
        database.execute(connection, raising("23505"))


_ALL: dict[str, Any] = {"namespace": "", "after": "", "max_rows": None}


@pytest.mark.parametrize("name", ["topic_lookup", "list_topics"])
def test_an_empty_database_is_not_migrated(empty_database_url: str, name: str) -> None:
    binds = {"topic_lookup": {"topic": "a/b"}, "list_topics": _ALL}[name]
    with psycopg.connect(empty_database_url) as connection, pytest.raises(NotMigrated) as caught:
        database.call(connection, name, **binds)
    assert "penstock migrate" in str(caught.value)


def test_an_older_schema_is_not_migrated(connection: psycopg.Connection[Any]) -> None:
    connection.execute("DROP FUNCTION penstock.list_topics(text, text, bigint)")
    with pytest.raises(NotMigrated):
        database.call(connection, "list_topics", **_ALL)
