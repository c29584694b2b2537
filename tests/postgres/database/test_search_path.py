"""A caller's own functions, operators and tables before Penstock's on the path are never used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql

import penstock
from penstock import log
from penstock.errors import PenstockError
from penstock.subscriptions import stream
from tests.contract.text_kit import call
from tests.kit.proof import proves
from tests.kit.tenants import OURS, THEIRS, Tenants, bulk

#: What a caller puts before Penstock's own schema, and before the server's.
EVIL = """
CREATE SCHEMA evil;
CREATE SEQUENCE evil.called;
CREATE FUNCTION evil.note() RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('evil.called') $$;
CREATE FUNCTION evil.refuse(code text, problem text, remedy text) RETURNS void
    LANGUAGE sql AS $$ SELECT evil.note() $$;
CREATE FUNCTION evil.require_topic_for(topic text, verb text) RETURNS bigint
    LANGUAGE sql AS $$ SELECT evil.note() $$;
CREATE FUNCTION evil.has_right(namespace_id bigint, verb text) RETURNS boolean
    LANGUAGE sql AS $$ SELECT evil.note() > 0 $$;
CREATE FUNCTION evil.new_event_id() RETURNS uuid
    LANGUAGE sql AS $$ SELECT evil.note(); SELECT gen_random_uuid() $$;
CREATE FUNCTION evil.current_history() RETURNS integer
    LANGUAGE sql AS $$ SELECT evil.note()::integer $$;
CREATE FUNCTION evil.high_watermark(partition_id bigint) RETURNS bigint
    LANGUAGE sql AS $$ SELECT evil.note() $$;
CREATE FUNCTION evil.octet_length(bytea) RETURNS integer
    LANGUAGE sql AS $$ SELECT evil.note()::integer $$;
CREATE FUNCTION evil.char_length(text) RETURNS integer
    LANGUAGE sql AS $$ SELECT evil.note()::integer $$;
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz
    LANGUAGE sql AS $$ SELECT evil.note(); SELECT pg_catalog.clock_timestamp() $$;
CREATE FUNCTION evil.pg_has_role(name, oid, text) RETURNS boolean
    LANGUAGE sql AS $$ SELECT evil.note() > 0 $$;
CREATE FUNCTION evil.same(text, text) RETURNS boolean
    LANGUAGE sql AS $$ SELECT evil.note() > 0 $$;
CREATE FUNCTION evil.same(bigint, bigint) RETURNS boolean
    LANGUAGE sql AS $$ SELECT evil.note() > 0 $$;
CREATE OPERATOR evil.= (FUNCTION = evil.same, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR evil.= (FUNCTION = evil.same, LEFTARG = bigint, RIGHTARG = bigint);
CREATE FUNCTION evil.convert_to(text, name) RETURNS bytea
    LANGUAGE sql AS $$ SELECT evil.note(); SELECT 'evil'::bytea $$;
CREATE FUNCTION evil.publish(
    text, bytea, text, text, text, jsonb, uuid, integer, timestamptz, text, boolean,
    OUT event_id uuid, OUT duplicate boolean)
    LANGUAGE sql AS $$ SELECT evil.note(); SELECT gen_random_uuid(), false $$;
CREATE TABLE evil.topics (LIKE pg_class);
CREATE TEMPORARY TABLE topics (id bigint, address text, restricted boolean);
CREATE TEMPORARY TABLE namespace_grants (namespace_id bigint, login text, verb text);
CREATE TEMPORARY TABLE events (id bigint);
SET search_path TO evil, pg_temp, pg_catalog, penstock;
"""


def _attack(tenants: Tenants, login: str) -> int:
    """How often something of the caller's own was called while it called Penstock."""
    database_name = sql.Identifier(tenants.owner.info.dbname)
    tenants.owner.execute(
        sql.SQL("GRANT CREATE, TEMPORARY ON DATABASE {} TO {}").format(
            database_name, sql.Identifier(login)
        )
    )
    with tenants.as_login(login) as own:
        own.execute(EVIL.encode())
        calls: tuple[Callable[[], object], ...] = (
            lambda: penstock.publish(own, OURS, b"1", key="k"),
            lambda: bulk(own, OURS),
            lambda: call(own, "publish_text", "1", OURS),
            lambda: call(own, "publish_json", "1", OURS),
            lambda: penstock.fetch(own, OURS, 0, 1),
            lambda: penstock.fetch(own, THEIRS, 0, 1),
            lambda: stream.subscribe(own, "mine", [OURS]),
            lambda: stream.check_in(own, stream.join(own, "mine", "one")),
            lambda: penstock.list_topics(own),
            lambda: penstock.create_topic(own, "ours/new"),
            lambda: penstock.rename_topic(own, "ours/new", "newer"),
            lambda: penstock.delete_topic(own, "ours/newer"),
        )
        for each in calls:
            with contextlib.suppress(PenstockError, psycopg.Error):
                each()
        row = own.execute("SELECT last_value, is_called FROM evil.called").fetchone()
    assert row is not None
    return int(row[0]) if row[1] else 0


def test_nothing_of_the_callers_own_schema_is_called(tenants: Tenants, us: str, they: str) -> None:
    """Guard: every function keeps its own search path, pg_temp last."""
    assert _attack(tenants, us) == 0
    log.sequence(tenants.owner)
    assert len(penstock.fetch(tenants.owner, OURS, 0, 1)) == 5


def test_without_its_own_search_path_the_callers_functions_run_as_the_owner(
    tenants: Tenants, us: str, they: str
) -> None:
    """Mutant: fetch looks where its caller says."""
    tenants.owner.execute("ALTER FUNCTION penstock.fetch RESET search_path")
    assert _attack(tenants, us) > 0


@proves("a text is published as it was written", guard="the search path")
@pytest.mark.parametrize("function", ["publish_text", "publish_json"])
def test_without_their_own_search_path_texts_are_the_callers(
    tenants: Tenants, us: str, they: str, function: str
) -> None:
    """Mutants of the two."""
    arguments = tenants.owner.execute(
        "SELECT %s::regproc::regprocedure::text", [f"penstock.{function}"]
    ).fetchone()
    assert arguments is not None
    tenants.owner.execute(f"ALTER FUNCTION {arguments[0]} RESET search_path".encode())
    assert _attack(tenants, us) > 0
