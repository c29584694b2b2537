"""Write the tables of `docs/sql.md`: every SQL function, as a migrated database has it.

Names, arguments, defaults and results come from the database's catalog. What a function does comes
from the comment above it in `sql/postgres/functions`. Its errors are the codes that its body, or
any function that it calls, can raise. The text around the tables is written by hand.

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

from penstock import database
from penstock.database import catalog, config, migrate
from penstock.driver_errors import BY_SQLSTATE
from resources.embedded import EmbeddedPostgres

PAGE = Path(__file__).resolve().parents[1] / "docs" / "sql.md"

#: The public functions by verb family, in the order of their use.
FAMILIES = {
    "names": "create_namespace rename_namespace move_namespace delete_namespace list_namespaces "
    "namespace_exists create_topic ensure_topic rename_topic move_topic resize_topic delete_topic "
    "list_topics describe_topic topic_lookup",
    "rights": "grant_namespace revoke_namespace grants_of install_rights function_roles",
    "publish": "publish publish_text publish_json publish_batch publish_columns prepare_bulk "
    "publish_bulk stage_events claim_rows claim_write publish_staged discard_staged sweep_staged "
    "partition_of turn_dedup set_backpressure measure_pressure",
    "log": "sequence announce wake_sequencer fetch fetch_plan lsn_of sequence_of position_at "
    "locate_time place_bookmark drop_bookmark list_bookmarks bookmark_positions high_watermarks "
    "unsequenced",
    "stream": "subscribe configure_subscription unsubscribe join check_in heartbeat heartbeats "
    "poll commit release leave held_leases position seek reset_subscription pause_subscription "
    "resume_subscription report_error list_subscriptions describe_subscription "
    "subscription_consumers subscription_lag unleased_cursors leased_cursors "
    "subscription_statistics take_overs rejected_commits",
    "queue": "receive acknowledge extend release_claims reject peek queue_statistics "
    "queue_pointers configure_queue describe_queue purge",
    "coordination": "claim lease_states active_consumers lead_subscription assign_partitions "
    "assignment_of mark_low_water note_archive_reads withdraw_archive_reads",
    "relay": "open_block open_cold_block read_block dead_letters_between relay_failure "
    "dead_letter sweep",
    "dead_letters": "suspects begin_attempt bring_letter give_up parked_keys commit_parking "
    "poll_redriven finish_redriven fail_redriven redrive dead_letters_of dead_letter_of "
    "dead_letter_counts drop_dead_letters",
    "epochs": "seal unsealed_logs log_epochs_of log_epochs_sealed_on log_epochs_between "
    "changed_hours record_copy copies_of copies_between lost_copies "
    "missing_copies forget_copy move_copy suspect_copy suspected_copies_of clear_suspicion "
    "event_digest count_log_epochs "
    "begin_clean log_epochs_due record_reading clean keep_events carry_positions condemn_slices "
    "condemned_can_go droppable_slices close_slice slice_detaching slice_dropped merge_chunks "
    "swap_chunks installation_id target_in_use copies_on note_target_speed target_speeds",
    "backfill": "request_backfill claim_backfill extend_backfill backfill_work progress_backfill "
    "finish_backfill fail_backfill cancel_backfill list_backfills backfill_ranges "
    "begin_rehydration put_rehydrated finish_rehydration rehydrated_of release_rehydrated",
    "erase": "find_erasable begin_erasure erase_events erase_letters finish_erasure "
    "list_erasures reissued_of erased_of",
    "operate": "set_retention retention_of retention_limits place_hold release_hold list_holds "
    "list_skips "
    "list_removals expire_dead_letters remove_leftovers set_policy clear_policy policy_of "
    "policy_history list_policies claim_relays relays_claimed_by subscription_policy "
    "ensure_slices slices_ready log_status "
    "sequence_gaps current_history histories_of history_starts_of report_positions restore_status "
    "reconcile applied_migrations set_setting setting settings_of snapshot_holders sequencer_state "
    "storage_shortage broken_slices untold_identity "
    "published_unkeyed",
}

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
_TABLE = "<!-- table: {} -->"
_END = "<!-- end -->"


class Stale(Exception):
    """The page cannot be made now.  The text says why."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function as the catalog has it, and as its file comments it."""

    name: str
    arguments: str
    result: str
    about: str
    codes: frozenset[str]


def functions(connection: database.Connection) -> dict[str, Function]:
    """Every function of the schema."""
    schema = config.schema_name()
    rows = database.execute(connection, _FUNCTIONS, {"schema": schema})
    bodies = {row[0]: row[1] for row in rows}
    about = {
        block.name: _RAISES.sub("", block.about)
        for _, text in catalog.functions(migrate.DIALECT).files
        for block in catalog.parse(text)
    }
    found = {}
    for name, _, many, modes, names, types, defaults, returned in rows:
        if name in OF_THE_SERVER:
            continue
        if name not in about:
            raise Stale(f"the function {name} has no block `-- name: {name}`")
        columns = list(zip(modes, names or [""] * len(modes), types, strict=True))
        given = [f"{n} {_short(t)}" for m, n, t in columns if m in {"i", "b"}]
        answered = [f"{n} {_short(t)}" for m, n, t in columns if m in {"o", "t", "b"}]
        found[name] = Function(
            name,
            ", ".join(_with_default(*each) for each in zip(given, defaults, strict=True)),
            _result(answered, many, _short(returned)),
            about[name],
            _codes(name, bodies),
        )
    return found


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
            todo += [called for called in _CALLED.findall(body) if called in bodies]
    return frozenset(code for each in seen for code in _CODE.findall(bodies[each]))


def tables(found: dict[str, Function]) -> dict[str, str]:
    """Each table of the page by its name."""
    public = [name for family in FAMILIES.values() for name in family.split()]
    gone = sorted(set(public) - found.keys())
    if gone:
        raise Stale(f"FAMILIES names functions that are gone: {', '.join(gone)}")
    hidden = sorted(_called_by_clients(found) - set(public))
    if hidden:
        raise Stale(f"clients call functions that are in no family: {', '.join(hidden)}")
    made = {
        family: _table([found[name] for name in names.split()])
        for family, names in FAMILIES.items()
    }
    made["internal"] = _internal([found[name] for name in sorted(found.keys() - set(public))])
    made["errors"] = _errors()
    return made


def _called_by_clients(found: dict[str, Function]) -> set[str]:
    texts = (each.text for each in catalog.statements(migrate.DIALECT).values())
    called = {name for text in texts for name in re.findall(r"\bpenstock\.(\w+)\(", text)}
    return called & found.keys()


def _table(rows: list[Function]) -> str:
    lines = ["| function | arguments | result | errors | what it does |", "|---|---|---|---|---|"]
    lines += [
        f"| `{row.name}` | {f'`{row.arguments}`' if row.arguments else '-'} | {row.result} | "
        f"{', '.join(sorted(row.codes)) or '-'} | {_cell(row.about)} |"
        for row in rows
    ]
    return "\n".join(lines)


def _internal(rows: list[Function]) -> str:
    lines = ["| function | what it does |", "|---|---|"]
    lines += [f"| `{row.name}({row.arguments})` | {_cell(row.about)} |" for row in rows]
    return "\n".join(lines)


def _errors() -> str:
    lines = ["| code | in Python | meaning |", "|---|---|---|"]
    for code, kind in sorted(BY_SQLSTATE.items()):
        meaning = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        lines.append(f"| {code} | `{kind.__name__}` | {_cell(meaning)} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def fill(page: str, made: dict[str, str]) -> str:
    """The page with new tables.  They replace what is between the marks."""
    for name, table in made.items():
        mark = _TABLE.format(name)
        before, found, rest = page.partition(mark)
        _, end, after = rest.partition(_END)
        if not found or not end:
            raise Stale(f"the page has no place for the table {name}: {mark} ... {_END}")
        page = f"{before}{mark}\n\n{table}\n\n{_END}{after}"
    return page


def render(connection: database.Connection) -> str:
    """The whole page for this database."""
    return fill(PAGE.read_text("utf-8"), tables(functions(connection)))


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
        print(f"docs/sql.md: {error}", file=sys.stderr)
        return 1
    if PAGE.read_text("utf-8") == page:
        return 0
    if given.check:
        print("docs/sql.md is stale: run python -m tools.sql_page", file=sys.stderr)
        return 1
    PAGE.write_text(page, "utf-8")
    print("docs/sql.md: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
