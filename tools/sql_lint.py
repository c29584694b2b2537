"""Keep `sql/mysql` within MySQL 8.0 and MariaDB 10.6, and its procedures within their transaction.

It finds what one of the engines, or a supported version, does not know, by the words of the text
without comments and strings. In all of `sql/` it finds lines that are too long, and refusals that
depend on the rows of a query. Run it as `python -m tools.sql_lint`; it exits with 1 and names every
fault.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "sql"
LONGEST_LINE = 120

#: What may not be written, and why.
NOT_PORTABLE = {
    r"\bRETURNING\b": "MySQL has no RETURNING",
    r"->": "MariaDB has no -> and ->>: JSON_EXTRACT, JSON_UNQUOTE, JSON_VALUE",
    r"\bLATERAL\b": "MariaDB has no LATERAL",
    r"\b(INTERSECT|EXCEPT)\b": "MySQL has them from 8.0.31 on",
    r"\bFOR\s+SHARE\b": "MariaDB knows LOCK IN SHARE MODE only",
    r"\bFOR\s+UPDATE\s+OF\b": "MariaDB has no FOR UPDATE OF",
    r"\b(INDEX|KEY)\s+\w*\s*\(\s*\(": "MariaDB has no functional index: index a generated column",
    r"\bINVISIBLE\b": "MariaDB has no INVISIBLE index",
    r"\bVALUES\s+ROW\s*\(": "MariaDB has no VALUES ROW",
    r"\)\s*AS\s+\w+\s+ON\s+DUPLICATE\b": "MariaDB has no INSERT .. AS: VALUES(column)",
    r"\b(UUID_TO_BIN|BIN_TO_UUID)\b": "MariaDB has neither: UNHEX, HEX",
    r"\bCREATE\s+OR\s+REPLACE\s+(PROCEDURE|FUNCTION)\b": "MySQL has none; the runner replaces",
    r"\bSEQUENCE\s+(OF|FOR)\b|\bNEXT(VAL\s*\(|\s+VALUE\s+FOR)|\bCREATE\s+SEQUENCE\b": (
        "MySQL has no sequences"
    ),
    r"\bFOR\s+\w+\s+IN\s*\(": "MySQL has no FOR loop",
    r"\b(GROUPING|RESPECT\s+NULLS|FULL\s+(OUTER\s+)?JOIN)\b": "not in both engines",
    r"\bNO\s*WAIT\b": "the engines have different errors for it",
    r"\bJSON_(OVERLAPS|SCHEMA_VALID|MERGE_PATCH)\b": "MariaDB 10.6 has no such function",
}

#: What begins or ends a transaction: a procedure is called inside the caller's transaction.
TRANSACTION_CONTROL = re.compile(
    r"\b(COMMIT|START\s+TRANSACTION|BEGIN\s+WORK|SET\s+(SESSION\s+)?TRANSACTION|XA|LOCK\s+TABLES|"
    r"UNLOCK\s+TABLES|TRUNCATE|ALTER|RENAME\s+TABLE)\b|\bROLLBACK\b(?!\s+TO\s+SAVEPOINT)|"
    r"\bautocommit\b|\bDROP\s+(?!TEMPORARY\b)\w+|"
    r"\bCREATE\s+(?!TEMPORARY\b|PROCEDURE\b|FUNCTION\b|OR\s+REPLACE\s+SQL\b)\w+",
    re.IGNORECASE,
)

#: Where a statement of a procedure begins, after its label, declarations, markers and blocks.
_BEGINS = re.compile(r";|\}\}|\b(?:BEGIN|THEN|ELSE|DO|LOOP)\b", re.IGNORECASE)
#: Also at READ COMMITTED, a query in these locks what it reads until the end of the transaction.
_LOCKING = re.compile(
    r"\s*(IF|ELSEIF|WHILE|SET|CALL|RETURN|DECLARE\b.*\bDEFAULT)\b.*\(\s*SELECT\b"
    r"(?!.*\bFROM\s+JSON_TABLE\b)",
    re.IGNORECASE | re.DOTALL,
)
_LOCKS_ON_PURPOSE = re.compile(r"\bFOR\s+UPDATE\b|\bLOCK\s+IN\s+SHARE\s+MODE\b", re.IGNORECASE)

_PROCEDURE = re.compile(r"^CREATE PROCEDURE\b.*?^END;", re.DOTALL | re.MULTILINE)
_WHOLE_CALL = re.compile(
    r"CALL undo_call\(\)(?:; DO LAST_INSERT_ID\(id_before\))?\}\}\s+"
    r"CALL begin_call\(.*CALL end_call\(\);\s+END;\Z",
    re.DOTALL,
)
#: Such a handler is written as a marker, which penstock.database.mysql.markers writes out.
_HANDLER = re.compile(r"\bDECLARE\s+EXIT\s+HANDLER\s+FOR\s+SQLEXCEPTION\b", re.IGNORECASE)
_NOISE = re.compile(r"/\*[!M]*.*?\*/|--[^\n]*|'(?:[^'\\]|\\.|'')*'|`[^`]*`", re.DOTALL)
#: What gathers rows into one value, whose length a session setting limits: MySQL cuts GROUP_CONCAT,
#: MariaDB all three, and it closes an array after the cut.
_WORDS = re.compile(r"--[^\n]*|'(?:[^'\\]|\\.|'')*'|`[^`]*`")  # one engine runs these as code
_GATHERS = re.compile(r"\b(GROUP_CONCAT|JSON_ARRAYAGG|JSON_OBJECTAGG)\s*\(", re.IGNORECASE)
_SETS_LIMIT = re.compile(
    r"\bSET\s+SESSION\s+group_concat_max_len\b(?!\s*=\s*limit_before)", re.IGNORECASE
)
#: What refuses a caller: a function on PostgreSQL, a procedure on MySQL.
_CHECK = re.compile(r"\b(?:refuse|(?:refuse|require|lock)_\w+)\s*\(", re.IGNORECASE)
#: What says where in a statement a check stands.
_CLAUSE = re.compile(
    r":=|\b(?:FUNCTION|SELECT|PERFORM|RETURN|IF|ELSIF|WHILE|VALUES|(?<!DISTINCT )FROM|JOIN|ON|USING"
    r"|WHERE|HAVING)\b",
    re.IGNORECASE,
)
_READS = {"FROM", "JOIN", "ON", "USING", "WHERE", "HAVING"}
_CLOSED = re.compile(r"\([^()]*\)")
#: Nothing but the check is read: it always runs.
_ALONE = re.compile(r"\w+\s*\([^()]*\)\s+AS\s+\w+\s*\Z", re.IGNORECASE)
_FUNCTION = re.compile(r"^CREATE FUNCTION\b.*?(?=^CREATE |\Z)", re.DOTALL | re.MULTILINE)
_REFUSES = re.compile(rf"\bSIGNAL\b|\bCALL\s+{_CHECK.pattern}", re.IGNORECASE)
#: User variables, which the caller may set to anything, and why nothing depends on their value.
USER_VARIABLES = {
    "@penstock_acting": "counts only for a gateway's login, with the savepoint of act_as",
    "@penstock_turn": "take_turn takes digits only",
    "@penstock_limit": "only compared with the session's own limit",
    "@penstock_own_limit": "lift_limit takes digits only, for a limit that the caller may set",
    "@penstock_forgotten": "turn_dedup takes a time only that has passed; an operator's call",
    "@penstock_looked": "digits only; a wrong time looks below the floor ten seconds later",
    "@penstock_state": "enter_era saves a look at the catalog by it; an operator's call",
}
_USER_VARIABLE = re.compile(r"(?<![@\w])@\w+")
_BLOCK = re.compile(r"^-- name: (\S+)$", re.MULTILINE)
#: Blocks that may gather without their own limit, and why. There is none: where there may be many
#: rows, use a join or a temporary table.
MAY_GATHER: dict[str, str] = {}


def check(path: Path, text: str) -> Iterator[str]:
    """Every fault of one file of `sql/`, as ``path:line: what is wrong``."""
    yield from _long_lines(path, text)
    if path.parts[1] == "mysql":
        yield from _mysql(path, text)
    late = _late_checks if path.parts[1] == "postgres" else _refusals
    for line in late(_blanked(_NOISE, text)):
        yield f"{path}:{line}: a query that finds no row runs no check: check before the query"


def _long_lines(path: Path, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) > LONGEST_LINE:
            yield f"{path}:{number}: the line has {len(line)} characters, more than {LONGEST_LINE}"


def _mysql(path: Path, text: str) -> Iterator[str]:
    code = _blanked(_NOISE, text)
    for pattern, reason in NOT_PORTABLE.items():
        for found in re.finditer(pattern, code, re.IGNORECASE):
            yield f"{path}:{_line(code, found.start())}: {' '.join(found[0].split())}: {reason}"
    if _is_of_functions(path):
        for found in TRANSACTION_CONTROL.finditer(code):
            words = " ".join(found[0].split())
            yield f"{path}:{_line(code, found.start())}: {words}: no control of the transaction"
        for line in _open_calls(code):
            yield f"{path}:{line}: begin_call comes right after undo_call's handler, end_call last"
        for found in _HANDLER.finditer(code):
            line = _line(code, found.start())
            yield f"{path}:{line}: write the handler as {{{{on error: a statement; ...}}}}"
        for line in _hidden_locks(code):
            yield f"{path}:{line}: a query that is not SELECT .. INTO locks what it reads"
    yield from _gathered(path, text)


def _is_of_functions(path: Path) -> bool:
    """Whether a file of a dialect holds functions, and not tables or the statements of programs."""
    return path.parts[2] not in {"calls", "migrations"} and path.name != "tables.sql"


def _blanked(noise: re.Pattern[str], text: str) -> str:
    return noise.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _gathered(path: Path, text: str) -> Iterator[str]:
    """Uses of what the session decides: user variables, and where gathered rows are cut."""
    code = _blanked(_WORDS, text)
    for variable in _USER_VARIABLE.finditer(code):
        if variable[0] not in USER_VARIABLES and _is_of_functions(path):
            yield (
                f"{path}:{_line(code, variable.start())}: {variable[0]}: a user variable is the"
                " caller's to set: take a local one, or say in USER_VARIABLES why it may be"
            )
    starts = [(0, ""), *((found.start(), found[1]) for found in _BLOCK.finditer(text))]
    ends = [start for start, _ in starts[1:]] + [len(text)]
    for (start, name), end in zip(starts, ends, strict=True):
        found = _GATHERS.search(code, start, end)
        limit = _SETS_LIMIT.search(code, start, end)
        if found is None or name in MAY_GATHER:
            continue
        # A cursor is declared before any statement, but it gathers when it is opened.
        if limit is None or (limit.start() > found.start() and "CURSOR FOR" not in code[start:end]):
            yield (
                f"{path}:{_line(code, found.start())}: {found[1].upper()} without its limit set"
                " cuts off in silence: join, or set group_concat_max_len before it"
            )


def _late_checks(code: str) -> Iterator[int]:
    """The lines of checks for which a plan of PostgreSQL may find no row to run them for.

    One that reads an empty table first answers a caller without rights with no rows.
    """
    begin = 0
    for end in (*(found.start() for found in re.finditer(r";|\$\$", code)), len(code)):
        statement = code[begin:end]
        for found in _CHECK.finditer(statement):
            clause = _clause(statement[: found.start()])
            alone = clause == "FROM" and _ALONE.match(statement, found.start())
            if clause in _READS and not alone:
                yield _line(code, begin + found.start())
        begin = end


def _clause(before: str) -> str:
    """The last word of a clause in what stands before a place and is not closed there."""
    while (rest := _CLOSED.sub(" ", before)) != before:
        before = rest
    words: list[str] = _CLAUSE.findall(before)
    return words[-1].upper() if words else ""


def _refusals(code: str) -> Iterator[int]:
    """The lines where a MySQL function, which a query can call, refuses: a procedure does."""
    for function in _FUNCTION.finditer(code):
        for found in _REFUSES.finditer(function[0]):
            yield _line(code, function.start() + found.start())


def _open_calls(code: str) -> Iterator[int]:
    """The lines of procedures that can undo a call, but do not begin it first and end it last."""
    for found in _PROCEDURE.finditer(code):
        if "CALL undo_call" in found[0] and not _WHOLE_CALL.search(found[0]):
            yield _line(code, found.start())


def _hidden_locks(code: str) -> Iterator[int]:
    """The lines of statements whose query locks rows without saying so."""
    begin = 0
    for end in (*(found.end() for found in _BEGINS.finditer(code)), len(code)):
        statement = code[begin:end]
        if _LOCKING.match(statement) and not _LOCKS_ON_PURPOSE.search(statement):
            yield _line(code, begin + len(statement) - len(statement.lstrip()))
        begin = end


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def main() -> int:
    """The command line: no arguments."""
    files = sorted(FOLDER.rglob("*.sql"))
    faults = [
        fault for each in files for fault in check(each.relative_to(ROOT), each.read_text("utf-8"))
    ]
    for fault in faults:
        print(fault)
    print(f"sql: {len(files)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
