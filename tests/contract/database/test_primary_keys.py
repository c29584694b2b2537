"""Every table that is updated or deleted from has a primary key.

Logical replication of all tables (PostgreSQL's FOR ALL TABLES) and servers that require a key
(MySQL's sql_require_primary_key, group replication) refuse the rest.
"""

from __future__ import annotations

import re

from penstock.database import catalog
from tests.contract.databases import ContractDatabase
from tests.kit.proof import proves

_TABLES = """
SELECT t.table_name, c.constraint_name FROM information_schema.tables AS t
LEFT JOIN information_schema.table_constraints AS c
    ON c.table_schema = t.table_schema AND c.table_name = t.table_name
    AND c.constraint_type = 'PRIMARY KEY'
WHERE t.table_schema = 'penstock' AND t.table_type = 'BASE TABLE'
"""
#: The index of the log, and its slices.  A partitioned table has no key without the column that it
#: is cut by.
_INSERT_ONLY = re.compile(r"chunks|chunks_\d+")


@proves("a published log goes on")
def test_every_table_has_a_primary_key(db: ContractDatabase) -> None:
    """Also those that are made at run time: the installation makes one of each kind."""
    tables = dict(db.run(_TABLES))
    assert {"events", "chunks", "queue_purges"} < set(tables)
    without = sorted(name for name, key in tables.items() if key is None)
    if db.engine == "postgres":
        without = [name for name in without if not _INSERT_ONLY.fullmatch(name)]
    assert without == []


@proves("a published log goes on")
def test_nothing_updates_the_index_of_the_log() -> None:
    """It is the one without a key on PostgreSQL."""
    changes = re.compile(r"(?i)(?:UPDATE|DELETE FROM)\s+(?:ONLY\s+)?chunks(?:_merged)?\b")
    for _, text in catalog.functions("postgres").files:
        assert changes.findall(text) == []
