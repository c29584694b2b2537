"""Write the tables of `docs/reference/sql.md`: every SQL function, as a migrated database has it.

Names, arguments, defaults and results come from the database's catalog. What a function does comes
from the comment above it in its room of `sql/postgres`. What is not in a folder `inner` is public.
Its errors are the codes that its body, or any function that it calls, can raise. The text around
the tables is written by hand, with a mark for each: `<!-- table: topics -->` for the public
functions of a room, `<!-- table: topics/rights -->` for those of one file of it.

Run it as `python -m tools.sql_page`; with `--check` it writes nothing and exits with 1 when the
page is stale. Without `--url` it starts an embedded server for the moment.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import database
from penstock.database import catalog, config, migrate
from penstock.driver_errors import BY_SQLSTATE
from resources.embedded import EmbeddedPostgres
from tools.made import TABLE, Stale, cell, fill

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "sql.md"

#: What every function asks for a gateway's login: the page says it once.
GATE = "acting_account"
#: Functions that Penstock creates only where the server does not have them.
OF_THE_SERVER = frozenset({"crc32"})

_FUNCTIONS = """
    SELECT p.proname, p.prosrc, p.proretset,
           COALESCE(p.proargmodes::text[], array_fill('i'::text, ARRAY[p.pronargs])),
           COALESCE(p.proargnames, '{}'),
           ARRAY(
               SELECT format_type(t.oid, NULL)
               FROM unnest(COALESCE(p.proallargtypes, p.proargtypes::oid[]))
                   WITH ORDINALITY AS t (oid, n)
               ORDER BY t.n),
           ARRAY(
               SELECT pg_get_function_arg_default(p.oid, n)
               FROM generate_series(1, p.pronargs) AS n
               ORDER BY n),
           format_type(p.prorettype, NULL)
    FROM pg_proc AS p
    WHERE p.pronamespace = %(schema)s::regnamespace
    ORDER BY p.proname
"""
_CODE = re.compile(r"'(PS\d{3})\b")
_CALLED = re.compile(r'\b"?([a-z_][a-z0-9_]*)"?\(')
_QUOTED = re.compile(r"'(?:[^']|'')*'|--[^\n]*")
_RAISES = re.compile(r"\s*Raises (?:PS\d|as )[^.]*\.")
_CAST = re.compile(r"('[^']*'|NULL)::[a-z ]+(?:\[\])?")
_MARK = re.compile(r"<!-- table: (\S+) -->")
_MADE = re.compile(r"^ *CREATE OR REPLACE FUNCTION ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Function:
    """A function as the catalog has it, and as its file comments it."""

    name: str
    #: Its file: room/file or room/inner/file.
    place: str
    arguments: str
    result: str
    about: str
    codes: frozenset[str]


def functions(connection: database.Connection) -> dict[str, Function]:
    """Every function of the schema."""
    schema = config.schema_name()
    rows = database.execute(connection, _FUNCTIONS, {"schema": schema})
    bodies = {row[0]: row[1] for row in rows}
    blocks = {
        block.name: (file.removesuffix(".sql"), block)
        for file, text in catalog.functions(migrate.DIALECT).files
        for block in catalog.parse(text)
        if _MADE.search(block.text)
    }
    for name in blocks.keys() - bodies.keys() - OF_THE_SERVER:
        raise Stale(f"the database does not have the function {name}")
    for name in bodies.keys() - blocks.keys() - OF_THE_SERVER:
        raise Stale(f"the function {name} has no block `-- name: {name}`")
    columns = {name: rest for name, _, *rest in rows}
    return {
        name: _function(name, place, block.about, columns[name], _codes(name, bodies))
        for name, (place, block) in blocks.items()
        if name not in OF_THE_SERVER
    }


def _function(
    name: str, place: str, about: str, columns: list[Any], codes: frozenset[str]
) -> Function:
    many, modes, names, types, defaults, returned = columns
    arguments = list(zip(modes, names or [""] * len(modes), types, strict=True))
    given = [f"{n} {_short(t)}" for m, n, t in arguments if m in {"i", "b"}]
    answered = [f"{n} {_short(t)}" for m, n, t in arguments if m in {"o", "t", "b"}]
    return Function(
        name,
        place,
        ", ".join(_with_default(*each) for each in zip(given, defaults, strict=True)),
        _result(answered, many, _short(returned)),
        _RAISES.sub("", about),
        codes,
    )


def _short(type_name: str) -> str:
    return type_name.replace("timestamp with time zone", "timestamptz").replace(
        f"{config.schema_name()}.", ""
    )


def _with_default(argument: str, default: str | None) -> str:
    return argument if default is None else f"{argument} = " + _CAST.sub(r"\1", default)


def _result(columns: list[str], many: bool, returned: str) -> str:
    if columns:
        return f"{'rows' if many else 'one row'}: `{', '.join(columns)}`"
    return "-" if returned == "void" else f"`{returned}`"


def _codes(name: str, bodies: dict[str, str]) -> frozenset[str]:
    """The codes that a function can raise, also through the functions that it calls."""
    seen: set[str] = set()
    todo = [name]
    while todo:
        each = todo.pop()
        if each not in seen:
            seen.add(each)
            body = _QUOTED.sub("", bodies[each])  # a function named in a hint is not called
            todo += [called for called in _CALLED.findall(body) if called in bodies.keys() - {GATE}]
    return frozenset(code for each in seen for code in _CODE.findall(bodies[each]))


def tables(page: str, found: dict[str, Function]) -> dict[str, str]:
    """Each table of the page by its mark."""
    marks = _MARK.findall(page)
    shown: dict[str, list[Function]] = {mark: [] for mark in marks}
    internal = [each for each in found.values() if f"/{catalog.INNER}/" in each.place]
    hidden = sorted({each.name for each in internal} & _called_by_clients())
    if hidden:
        raise Stale(f"clients call functions that are inner: {', '.join(hidden)}")
    for each in found.values():
        if each not in internal:
            room = each.place.partition("/")[0]
            mark = each.place if each.place in shown else room
            if mark not in shown:
                raise Stale(f"no table is for {each.place}, with {each.name}: {TABLE.format(room)}")
            shown[mark].append(each)
    made = {mark: _table(rows) for mark, rows in shown.items()}
    return made | {"errors": _errors()}


def _called_by_clients() -> set[str]:
    texts = (each.text for each in catalog.statements(migrate.DIALECT).values())
    return {name for text in texts for name in re.findall(r"\bpenstock\.(\w+)\(", text)}


def _table(rows: list[Function]) -> str:
    lines = ["| function | arguments | result | errors | what it does |", "|---|---|---|---|---|"]
    lines += [
        f"| `{row.name}` | {f'`{row.arguments}`' if row.arguments else '-'} | {row.result} | "
        f"{', '.join(sorted(row.codes)) or '-'} | {cell(row.about)} |"
        for row in rows
    ]
    return "\n".join(lines)


def _errors() -> str:
    lines = ["| code | in Python | meaning |", "|---|---|---|"]
    for code, kind in sorted(BY_SQLSTATE.items()):
        meaning = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        lines.append(f"| {code} | `{kind.__name__}` | {cell(meaning)} |")
    return "\n".join(lines)


def render(connection: database.Connection) -> str:
    """The whole page for this database."""
    page = PAGE.read_text("utf-8")
    return fill(page, tables(page, functions(connection)))


@contextmanager
def _database(url: str | None) -> Iterator[database.Connection]:
    if url:
        with database.connect(url) as connection:
            yield connection
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedPostgres(Path(folder) / "postgres", settings={"fsync": "off"}) as server,
    ):
        migrate.migrate(server.url())
        with database.connect(server.url()) as connection:
            yield connection


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.sql_page")
    parser.add_argument("--check", action="store_true", help="only say whether the page is stale")
    parser.add_argument("--url", help="a database that this version has migrated")
    given = parser.parse_args(arguments)
    try:
        with _database(given.url) as connection:
            page = render(connection)
    except Stale as error:
        print(f"docs/reference/sql.md: {error}", file=sys.stderr)
        return 1
    if PAGE.read_text("utf-8") == page:
        return 0
    if given.check:
        print("docs/reference/sql.md is stale: run python -m tools.sql_page", file=sys.stderr)
        return 1
    PAGE.write_text(page, "utf-8")
    print("docs/reference/sql.md: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
