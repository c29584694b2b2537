"""The facts of a schema on PostgreSQL, from its catalogs."""

from __future__ import annotations

from typing import Any

from penstock.database import calls

#: A storage slice: its name counts up, so facts about it are those of every slice of its table.
#: The server names its indexes.  That a column is NOT NULL has a name on PostgreSQL 18 only.
SLICE, INDEX = "<slice>", "<index>"

_RELATIONS = """
    SELECT c.relname, p.relname, c.oid::bigint,
           concat_ws(' ', c.relkind, c.relpersistence, array_to_string(c.reloptions, ','),
                     'identity ' || c.relreplident::text, CASE WHEN c.relrowsecurity THEN 'rls' END,
                     CASE WHEN c.relkind = 'p' THEN pg_get_partkeydef(c.oid) END,
                     CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END,
                     COALESCE(c.relacl, acldefault('r', c.relowner))::text,
                     obj_description(c.oid, 'pg_class'))
    FROM pg_class AS c
    LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid AND c.relispartition
    LEFT JOIN pg_class AS p ON p.oid = i.inhparent
    WHERE c.relnamespace = %(schema)s::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""

#: What belongs to a table: a query for each kind of it.
_PARTS = {
    "column": """
        SELECT a.attrelid::bigint, a.attname,
               concat_ws(' ', row_number() OVER (PARTITION BY a.attrelid ORDER BY a.attnum) || '.',
                         format_type(a.atttypid, a.atttypmod),
                         CASE WHEN a.attcollation <> t.typcollation THEN l.collname END,
                         CASE WHEN a.attnotnull THEN 'NOT NULL' END,
                         'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid),
                         'identity ' || NULLIF(a.attidentity::text, ''),
                         'generated ' || NULLIF(a.attgenerated::text, ''),
                         'storage ' || a.attstorage::text,
                         'compression ' || NULLIF(a.attcompression::text, ''),
                         'statistics ' || NULLIF(to_jsonb(a) ->> 'attstattarget', '-1'),
                         array_to_string(a.attoptions, ','), array_to_string(a.attacl, ','),
                         col_description(a.attrelid, a.attnum))
        FROM pg_attribute AS a
        JOIN pg_class AS c ON c.oid = a.attrelid
        JOIN pg_type AS t ON t.oid = a.atttypid
        LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
        LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE c.relnamespace = %(schema)s::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
    """,
    "constraint": """
        SELECT n.conrelid::bigint, n.conname,
               concat_ws(' ', pg_get_constraintdef(n.oid), obj_description(n.oid, 'pg_constraint'))
        FROM pg_constraint AS n
        WHERE n.connamespace = %(schema)s::regnamespace AND n.contype <> 'n'
    """,
    "index": """
        SELECT i.indrelid::bigint, c.relname,
               concat_ws(' ', pg_get_indexdef(i.indexrelid), array_to_string(c.reloptions, ','),
                         CASE WHEN NOT i.indisvalid THEN 'invalid' END,
                         CASE WHEN i.indisreplident THEN 'replica identity' END,
                         CASE WHEN i.indisclustered THEN 'clustered' END,
                         obj_description(c.oid, 'pg_class'))
        FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
        WHERE c.relnamespace = %(schema)s::regnamespace
    """,
    "trigger": """
        SELECT t.tgrelid::bigint, t.tgname, pg_get_triggerdef(t.oid)
        FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
        WHERE c.relnamespace = %(schema)s::regnamespace AND NOT t.tgisinternal
    """,
    "statistics": """
        SELECT s.stxrelid::bigint, s.stxname, pg_get_statisticsobjdef(s.oid)
        FROM pg_statistic_ext AS s
        WHERE s.stxnamespace = %(schema)s::regnamespace
    """,
}

#: What belongs to the schema alone.
_OTHERS = {
    "schema": """
        SELECT '', concat_ws(' ', COALESCE(n.nspacl, acldefault('n', n.nspowner))::text,
                             obj_description(n.oid, 'pg_namespace'))
        FROM pg_namespace AS n
        WHERE n.nspname = %(schema)s
    """,
    "default rights": """
        SELECT d.defaclobjtype::text, array_to_string(d.defaclacl, ',')
        FROM pg_default_acl AS d
        WHERE d.defaclnamespace = %(schema)s::regnamespace
    """,
    "sequence": """
        SELECT c.relname,
               concat_ws(' ', format_type(s.seqtypid, NULL), s.seqstart, s.seqincrement, s.seqmin,
                         s.seqmax, s.seqcache, CASE WHEN s.seqcycle THEN 'cycle' END,
                         'owned by ' || (
                             SELECT o.refobjid::regclass || '.' || a.attname
                             FROM pg_depend AS o JOIN pg_attribute AS a
                               ON a.attrelid = o.refobjid AND a.attnum = o.refobjsubid
                             WHERE o.objid = c.oid AND o.deptype IN ('a', 'i')
                               AND o.refclassid = 'pg_class'::regclass),
                         c.relpersistence, COALESCE(c.relacl, acldefault('s', c.relowner))::text,
                         obj_description(c.oid, 'pg_class'))
        FROM pg_sequence AS s JOIN pg_class AS c ON c.oid = s.seqrelid
        WHERE c.relnamespace = %(schema)s::regnamespace
    """,
    "type": """
        SELECT t.typname,
               concat_ws(' ', t.typtype, COALESCE(t.typacl, acldefault('T', t.typowner))::text,
                         (SELECT string_agg(e.enumlabel, ',' ORDER BY e.enumsortorder)
                          FROM pg_enum AS e WHERE e.enumtypid = t.oid),
                         (SELECT string_agg(
                                     a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', '
                                     ORDER BY a.attnum)
                          FROM pg_attribute AS a
                          WHERE a.attrelid = t.typrelid AND NOT a.attisdropped),
                         obj_description(t.oid, 'pg_type'))
        FROM pg_type AS t LEFT JOIN pg_class AS c ON c.oid = t.typrelid
        WHERE t.typnamespace = %(schema)s::regnamespace AND t.typcategory <> 'A'
          AND COALESCE(c.relkind, 'c') = 'c'
    """,
    "function": """
        SELECT p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
               concat_ws(' ', CASE WHEN p.prokind <> 'a' THEN pg_get_functiondef(p.oid) END,
                         COALESCE(p.proacl, acldefault('f', p.proowner))::text,
                         obj_description(p.oid, 'pg_proc'))
        FROM pg_proc AS p
        WHERE p.pronamespace = %(schema)s::regnamespace
    """,
}

#: The tables that may hold rows, each with the columns that are alike in every installation.
_HELD = """
    SELECT c.relname, (
        SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum)
        FROM pg_attribute AS a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid NOT IN (
            'timestamptz'::regtype, 'uuid'::regtype, 'xid8'::regtype, 'pg_snapshot'::regtype))
    FROM pg_class AS c
    WHERE c.relnamespace = %(schema)s::regnamespace AND c.relkind IN ('r', 'p')
      AND NOT c.relispartition
"""
#: Tables whose rows say who has installed what, and when.
_BOOKS = frozenset({"schema_migrations", "slices", "slice_rates", "eras", "ticks"})


def read(connection: Any, schema: str, *, rows: bool) -> dict[str, str]:
    """Every fact about the schema: what it is about, and what it says."""
    binds = {"schema": schema}
    # Names of this schema come without it, whatever the schema is called.
    path = "SELECT set_config('search_path', quote_ident(%(schema)s), false)"
    calls.execute(connection, path, binds)
    places: dict[int, tuple[str, str]] = {}
    found: dict[str, set[str]] = {}
    for name, parent, oid, text in calls.execute(connection, _RELATIONS, binds):
        places[oid] = (f"slices of {parent}", name) if parent else (f"table {name}", "")
        _note(found, places[oid], "", text)
    for kind, query in _PARTS.items():
        for oid, name, text in calls.execute(connection, query, binds):
            if oid not in places:
                continue
            if places[oid][1] and kind == "index":
                name, text = INDEX, text.replace(name, INDEX)
            _note(found, places[oid], f", {kind} {name}", text)
    for kind, query in _OTHERS.items():
        for name, text in calls.execute(connection, query, binds):
            found.setdefault(f"{kind} {name}", set()).add(text)
    unnamed = (f'"{schema}".', f"{schema}.")
    facts = {
        what: " | ".join(sorted(_without(text, unnamed) for text in texts))
        for what, texts in found.items()
    }
    return facts | (_rows(connection, binds) if rows else {})


def _note(found: dict[str, set[str]], place: tuple[str, str], what: str, text: str) -> None:
    about, of_slice = place
    if of_slice:
        what, text = what.replace(of_slice, SLICE), text.replace(of_slice, SLICE)
    found.setdefault(f"{about}{what}", set()).add(text)


def _without(text: str, words: tuple[str, ...]) -> str:
    for word in words:
        text = text.replace(word, "")
    return text


def _rows(connection: Any, binds: dict[str, Any]) -> dict[str, str]:
    facts = {}
    for table, columns in calls.execute(connection, _HELD, binds):
        ((count, digest),) = calls.execute(
            connection,
            "SELECT count(*), md5(string_agg(r::text, E'\\n' ORDER BY r::text))"
            f' FROM (SELECT {columns or "1"} FROM "{table}") AS r',
        )
        if count and table not in _BOOKS:
            facts[f"rows of {table}"] = f"{count}, digest {digest}"
    return facts
