"""The SQL files: named client statements, numbered migrations and the functions in their rooms.

In a checkout the files are in ``sql/`` beside this package, in the installed wheel inside it.
They are read through :mod:`importlib.resources`, so they are found inside a zipped package too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

from penstock.database.mysql import markers
from penstock.errors import DEFAULT_SCHEMA, InvalidArgument, PenstockError

_BLOCK = re.compile(r"^-- name: *(\S+) *$", re.MULTILINE)
#: Behind the name of a statement of PostgreSQL that calls one function: in a transaction of its own
#: it names an account and does this for it, in one round trip.
FOR_ACCOUNT = ", for an account"
#: The argument in which that is done.
_ARGUMENT = "%(subscription)s"
_BIND = re.compile(r"%\((\w+)\)s")
#: The comments of MySQL statements that this program reads: `-- json: 3` (the index of a column),
#: `-- reads only`, `-- limits the session`.
_JSON = re.compile(r"json: (\d+(?:, \d+)*)")
_READS = "reads only"
_LIMITS = "limits the session"
_FLAGS = frozenset({_READS, _LIMITS})
_SCHEMA = re.compile(rf"\b{DEFAULT_SCHEMA}\.")
_QUOTES = {"postgres": '"', "mysql": "`"}
_MIGRATION = re.compile(r"(\d{4})_(\w+)\.sql")
#: The folders of tables and functions, in the order in which they are applied.
ROOMS = (
    "ground",
    "topics",
    "accounts",
    "publishing",
    "log",
    "storage",
    "restore",
    "subscriptions",
    "leases",
    "stream",
    "queue",
    "dead_letters",
    "relay",
    "archive",
    "install",
)
#: In a room: the file of its tables, and the folder of the functions that no client calls.
TABLES = "tables.sql"
INNER = "inner"
#: The number and the name of the migration with which everything begins.
BASELINE = 1
BASELINE_NAME = "tables"
_COMMENT = re.compile(r"--[^\n]*")
_OLDEST_PROGRAM = re.compile(r"^-- oldest program: (\d+) *$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    """One named client statement; ``binds`` are the names of its ``%(bind)s`` places."""

    name: str
    about: str
    text: str
    binds: frozenset[str]
    #: Indexes of the columns that come as JSON text and stand for lists.
    json: frozenset[int] = frozenset()
    #: It changes nothing, so it needs no transaction.
    reads: bool = False
    #: It sets a time limit that is meant for its transaction but stays with the session.
    limits: bool = False


@dataclass(frozen=True, slots=True)
class Migration:
    """The tables of all rooms, or one numbered file.

    Programs that know no migration up to ``oldest_program`` cannot use it.
    """

    version: int
    name: str
    text: str
    checksum: str
    oldest_program: int


class Step(NamedTuple):
    """What is run at once: a text, and the migrations that are in place after it."""

    text: str
    recorded: tuple[Migration, ...]


@dataclass(frozen=True, slots=True)
class Functions:
    """All files of functions, in the order of their rooms, and one checksum over them."""

    files: tuple[tuple[str, str], ...]
    checksum: str


@lru_cache(maxsize=32)
def statements(dialect: str, schema: str = DEFAULT_SCHEMA) -> dict[str, Statement]:
    """Every named block of ``sql/<dialect>/calls/*.sql``, for this schema."""
    found: dict[str, Statement] = {}
    for file in _sql_files(_folder(dialect) / "calls"):
        for statement in parse(file.read_text("utf-8"), schema, _QUOTES[dialect]):
            if statement.name in found:
                raise PenstockError(f"{file.name}: the block {statement.name} exists twice")
            found[statement.name] = statement
    return found


@lru_cache(maxsize=2048)
def statement(dialect: str, name: str, schema: str = DEFAULT_SCHEMA) -> Statement:
    """One named block; with :data:`FOR_ACCOUNT` behind its name, the same for an account."""
    try:
        found = statements(dialect, schema)[name.removesuffix(FOR_ACCOUNT)]
        acting = statements(dialect, schema)["act_as"]
    except KeyError:
        raise InvalidArgument(f"there is no SQL statement named {name!r}") from None
    return _for_account(found, acting) if name.endswith(FOR_ACCOUNT) else found


def _for_account(found: Statement, acting: Statement) -> Statement:
    """The same, and the account is named first: in an argument, which comes before the call."""
    call = acting.text.removeprefix("SELECT ")
    named = f"CASE {call}::text WHEN '' THEN {_ARGUMENT} END"
    text = found.text.replace(_ARGUMENT, named, 1)
    return replace(found, text=text, binds=found.binds | acting.binds)


def blocks(text: str) -> list[tuple[str, str]]:
    """The named blocks of one file, unchanged: name and text, comments included."""
    _, *parts = _BLOCK.split(text)
    return [(name, body.strip()) for name, body in zip(parts[::2], parts[1::2], strict=True)]


def parse(text: str, schema: str = DEFAULT_SCHEMA, quote: str = '"') -> list[Statement]:
    """The named blocks of one file; ``penstock.`` becomes the name of the schema."""
    return [_statement(name, body, schema, quote) for name, body in blocks(text)]


def _statement(name: str, body: str, schema: str, quote: str) -> Statement:
    lines = body.splitlines()
    comments = [line[2:].strip() for line in lines if line.startswith("--")]
    sql = "\n".join(line for line in lines if not line.lstrip().startswith("--")).strip()
    sql = sql.removesuffix(";").rstrip()
    if schema != DEFAULT_SCHEMA:
        sql = _SCHEMA.sub(f"{quote}{schema}{quote}.", sql)
    about = [each for each in comments if each not in _FLAGS and not _JSON.fullmatch(each)]
    places = (found[1] for each in comments if (found := _JSON.fullmatch(each)))
    return Statement(
        name,
        " ".join(about),
        sql,
        frozenset(_BIND.findall(sql)),
        frozenset(int(place) for each in places for place in each.split(", ")),
        _READS in comments,
        _LIMITS in comments,
    )


@lru_cache(maxsize=4)
def tables(dialect: str) -> str:
    """Every ``tables.sql``: the schema as it is now, which a new installation gets at once."""
    places = [_folder(dialect) / room / TABLES for room in ROOMS]
    texts = [each.read_text("utf-8") for each in places if each.is_file()]
    return "\n".join(texts).replace("\r\n", "\n")


@lru_cache(maxsize=4)
def migrations(dialect: str) -> tuple[Migration, ...]:
    """The numbered migrations in order: 1, 2, 3, ... without a gap.

    The first one made the tables of the first release.  Until there is one, they are those of now.
    """
    found = [_migration(file) for file in _sql_files(_folder(dialect) / "migrations")]
    if not found or found[0].version != BASELINE:
        text = tables(dialect)
        found.insert(0, Migration(BASELINE, BASELINE_NAME, text, _statements_sha256(text), 0))
    if [each.version for each in found] != list(range(BASELINE, BASELINE + len(found))):
        raise PenstockError(f"sql/{dialect}/migrations is not numbered 0002, 0003, ...")
    return tuple(found)


def steps(dialect: str, applied: Container[int]) -> list[Step]:
    """What leads to the schema of now from where these migrations have led.

    Where there is none yet, the tables of now stand for all of them.
    """
    known = migrations(dialect)
    if BASELINE not in applied:
        return [Step(tables(dialect), known)]
    return [Step(each.text, (each,)) for each in known if each.version not in applied]


def _migration(file: Traversable) -> Migration:
    match = _MIGRATION.fullmatch(file.name)
    if match is None:
        raise PenstockError(f"{file.name} is not named NNNN_name.sql")
    text = file.read_text("utf-8").replace("\r\n", "\n")
    oldest = _OLDEST_PROGRAM.search(text)
    return Migration(
        version=int(match[1]),
        name=match[2],
        text=text,
        checksum=_statements_sha256(text),
        oldest_program=int(oldest[1]) if oldest else 0,
    )


@lru_cache(maxsize=4)
def functions(dialect: str) -> Functions:
    """The repeatable files, which are applied again whenever one of them has changed.

    Their markers are expanded, so the checksum covers the text that the database gets.
    """
    found = tuple(
        (name, _expanded(dialect, name, file.read_text("utf-8").replace("\r\n", "\n")))
        for room in ROOMS
        for name, file in _function_files(dialect, room)
    )
    return Functions(found, _sha256("".join(f"{name}\0{text}\0" for name, text in found)))


def _function_files(dialect: str, room: str) -> list[tuple[str, Traversable]]:
    """The files of a room that hold functions, each with its place: first what is inner."""
    return [
        (f"{place}/{file.name}", file)
        for place in (f"{room}/{INNER}", room)
        for file in _sql_files(_folder(dialect) / place)
        if file.name != TABLES
    ]


def _expanded(dialect: str, file: str, text: str) -> str:
    return markers.expanded(file, text) if dialect == "mysql" else text


def _folder(dialect: str) -> Traversable:
    # The wheel's own folder first: another package may be called `sql` too.
    for root in (files("penstock") / "sql", Path(__file__).parents[2] / "sql"):
        if (root / dialect).is_dir():
            return root / dialect
    raise PenstockError(
        f"the SQL files of {dialect} are not installed", hint="install the wheel of Penstock again"
    )


def _sql_files(folder: Traversable) -> list[Traversable]:
    if not folder.is_dir():
        return []
    found = [each for each in folder.iterdir() if each.name.endswith(".sql")]
    return sorted(found, key=lambda each: each.name)


def _statements_sha256(text: str) -> str:
    """Of the statements alone: a comment may be put better, and the tables stay what they are."""
    return _sha256(" ".join(_COMMENT.sub("", text).split()))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
